//! What answers are made of.

use std::io;
use std::sync::Arc;

use hyper::StatusCode;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::answer::{ApiError, Bounded, Made, ResponseMemory};
use super::history::History;
use super::query::Query;
use crate::admin::Subject;
use tributary_sink_view::View;

/// What all requests share.
#[derive(Debug)]
pub(in crate::admin) struct SharedApi {
    pub(super) history: History,
    /// One answer is made at a time, so that the memory of making it is bounded.
    pub(super) turn: Arc<Semaphore>,
}

impl SharedApi {
    pub(in crate::admin) fn new(subject: &Subject) -> Self {
        let history = History::new();
        // Before any event, so that the first increment has them all.
        history.add(&subject.accounting.totals());
        SharedApi { history, turn: Arc::new(Semaphore::new(1)) }
    }
}

/// What an answer is made of.
pub(super) struct ApiContext {
    pub(super) subject: Arc<Subject>,
    pub(super) shared: Arc<SharedApi>,
    pub(super) query: Query,
    /// The memory that is left for the answer.
    pub(super) memory: ResponseMemory,
}

impl ApiContext {
    pub(super) fn new(subject: Arc<Subject>, shared: Arc<SharedApi>, query: Query) -> ApiContext {
        let max_answer = subject.view.as_ref().map_or(1 << 20, |view| view.options().max_answer);
        let memory = ResponseMemory::new(usize::try_from(max_answer).unwrap_or(usize::MAX));
        ApiContext { subject, shared, query, memory }
    }

    /// The view.
    pub(super) fn view(&self) -> Result<&Arc<View>, ApiError> {
        let off = || ApiError::new(StatusCode::NOT_FOUND, "the view is off ([view] enabled)");
        self.subject.view.as_ref().ok_or_else(off)
    }

    /// A JSON document.
    pub(super) fn json(&self, document: &impl Serialize) -> Result<Made, ApiError> {
        Made::json(&self.memory, document)
    }

    /// A file, which `write` writes.
    pub(super) fn file(
        &self,
        name: String,
        content_type: &'static str,
        write: impl FnOnce(&mut Bounded) -> io::Result<()>,
    ) -> Result<Made, ApiError> {
        Made::file(&self.memory, name, content_type, write)
    }
}
