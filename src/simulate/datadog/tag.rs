//! Names and values of tags.

use super::strings::Word;

pub(super) const ENV: Word = Word::new("env");
pub(super) const PROD: Word = Word::new("prod");
pub(super) const VERSION: Word = Word::new("version");
pub(super) const VERSION_NOW: Word = Word::new("3.14.1");
pub(super) const LANGUAGE: Word = Word::new("language");
pub(super) const RUST: Word = Word::new("rust");
pub(super) const RUNTIME_ID: Word = Word::new("runtime-id");
pub(super) const CUSTOMER: Word = Word::new("customer.kind");
pub(super) const NEW_CUSTOMER: Word = Word::new("new");
pub(super) const REGULAR_CUSTOMER: Word = Word::new("regular");
pub(super) const SPAN_KIND: Word = Word::new("span.kind");
pub(super) const HTTP_METHOD: Word = Word::new("http.method");
pub(super) const HTTP_URL: Word = Word::new("http.url");
pub(super) const HTTP_STATUS_CODE: Word = Word::new("http.status_code");
pub(super) const STATUS_200: Word = Word::new("200");
pub(super) const STATUS_503: Word = Word::new("503");
pub(super) const TRACE_ID_UPPER: Word = Word::new("_dd.p.tid");
pub(super) const ERROR_TYPE: Word = Word::new("error.type");
pub(super) const ERROR_MESSAGE: Word = Word::new("error.message");
pub(super) const PROCESS_ID: Word = Word::new("process_id");
pub(super) const SAMPLING_PRIORITY: Word = Word::new("_sampling_priority_v1");
pub(super) const TOP_LEVEL: Word = Word::new("_dd.top_level");
pub(super) const MEASURED: Word = Word::new("_dd.measured");
