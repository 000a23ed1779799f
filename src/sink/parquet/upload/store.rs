//! One file to one object, and the store's confirmation that it has it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::{Path, PathPart};
use object_store::{
    Attribute, Attributes, BackoffConfig, Error, MultipartUpload, ObjectStore, ObjectStoreExt as _,
    PutMultipartOptions, PutOptions, RetryConfig,
};

use super::connector::{Connector, TAIL_BYTES};
use super::options::{Provider, UploadOptions, is_secret};
use tributary_sink::DestinationState;
use tributary_sink_forward::AttemptOutcome;

/// The media type of Parquet files.
const MEDIA_TYPE: &str = "application/vnd.apache.parquet";
/// A request that the server could not process now is repeated this often before the attempt counts as failed.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long the store may take to forget the parts of a file that could not be sent.
const ABORT_TIME: Duration = Duration::from_secs(5);
/// The most parts of an object of S3.
const MAX_PARTS: u64 = 10_000;
/// Objects whose name is taken are numbered; more than this many are an error.
const MAX_SAME_NAME: u32 = 1_000;
/// The name of the object that a check asks for.
const PROBE: &str = "tributary-check";
/// How stores say that there is no such bucket, beside those that there is no such object.
const MISSING_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];
/// What stores answer with status 400 although it is not about one object.
const BAD_SETTINGS: [&str; 7] = [
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
    "ExpiredToken",
    "InvalidToken",
    "InvalidBucketName",
    "IllegalLocationConstraint",
    "KMS.",
];
/// A shorter secret would be found in other words of an error.
const SHORTEST_SECRET: usize = 6;
/// At most this many bytes of an error are shown.
const SHOWN_BYTES: usize = 600;

/// A bucket.
#[derive(Debug)]
pub(super) struct UploadStore {
    store: Box<dyn ObjectStore>,
    part_bytes: u64,
    /// The status of the last answer; 0: there was none.
    status: Arc<AtomicU16>,
    /// What no error may show.
    secrets: Vec<String>,
}

/// Why a file was not uploaded.
#[derive(Debug)]
pub(super) enum UploadError {
    /// It cannot be read here.
    File(io::Error),
    /// The store does not take this file, in its own words.
    Bad(String),
    /// The store takes no file now.
    Store(Outage),
}

/// A store takes no file.
#[derive(Debug)]
pub(super) struct Outage {
    /// Away or refusing.
    pub(super) state: DestinationState,
    /// In its own words.
    pub(super) why: String,
}

/// An operator must correct something.
pub(super) fn refusing(why: String) -> UploadError {
    UploadError::Store(Outage { state: DestinationState::Refusing, why })
}

impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> UploadError {
        UploadError::File(error)
    }
}

impl UploadStore {
    /// Reads the files and variables with settings. Does not connect.
    ///
    /// # Errors
    /// One of them cannot be read, or is not valid.
    pub(super) fn open(options: &UploadOptions) -> Result<UploadStore, String> {
        let mut settings = vec![("allow_http", options.allow_http.to_string())];
        let mut secrets = Vec::new();
        for (key, value) in &options.settings {
            let value = value.read().map_err(|error| format!("{key}: {error}"))?;
            if is_secret(key) {
                secrets.push(value.clone());
            }
            settings.push((key, value));
        }
        let status = Arc::<AtomicU16>::default();
        let connector = Connector::new(options, status.clone()).map_err(|error| error.to_string())?;
        let store = open(options, connector, settings).map_err(|error| shown(&error, &secrets))?;
        Ok(UploadStore { store, part_bytes: options.part_bytes as u64, status, secrets })
    }

    /// Asks for an object that nothing has written: whether the store answers, knows the bucket, and accepts the credentials.
    ///
    /// # Errors
    /// It does not.
    pub(crate) async fn probe(&self, prefix: &Path) -> Result<(), String> {
        let key = prefix.parts().chain([PathPart::from(PROBE)]).collect::<Path>();
        let Err(error) = self.store.get_range(&key, 0..1).await else { return Ok(()) };
        let why = shown(&error, &self.secrets);
        let has_bucket = !MISSING_BUCKET.iter().any(|code| why.contains(code));
        if matches!(error, Error::NotFound { .. }) && has_bucket { Ok(()) } else { Err(why) }
    }

    /// Uploads a file. When this returns `Ok`, the store has the whole of it: it says so in the answer to a request of its own.
    /// An object that is this file already is not sent again; one that is another file keeps its name, and this file gets a
    /// number. Returns the name.
    ///
    /// # Errors
    /// The file cannot be read, or the store does not confirm it.
    pub(super) async fn upload(&self, path: &FilePath, key: &Path) -> Result<Path, UploadError> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        for number in 0..MAX_SAME_NAME {
            let key = numbered(key, number);
            match self.store.head(&key).await {
                Ok(found) if found.size == bytes && self.ends_alike(&mut file, bytes, &key).await? => return Ok(key),
                Ok(_) => {}
                Err(Error::NotFound { .. }) => {
                    file.seek(SeekFrom::Start(0))?;
                    self.put(&mut file, bytes, &key).await?;
                    return self.confirm(bytes, &key).await.map(|()| key);
                }
                Err(error) => return Err(self.explained(&error, &key).await),
            }
        }
        Err(UploadError::Bad(format!("the names {key} to {} are taken", numbered(key, MAX_SAME_NAME - 1))))
    }

    /// Whether an object of the same length has the same end: the footer of a Parquet file, with the statistics of its columns
    /// and a checksum of the rows that it was made of.
    async fn ends_alike(&self, file: &mut File, bytes: u64, key: &Path) -> Result<bool, UploadError> {
        let start = bytes.saturating_sub(TAIL_BYTES as u64);
        let mut here = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(TAIL_BYTES as u64).read_to_end(&mut here)?;
        let there = self.store.get_range(key, start..bytes).await.map_err(|error| self.fault(&error))?;
        Ok(here == there)
    }

    async fn put(&self, file: &mut File, bytes: u64, key: &Path) -> Result<(), UploadError> {
        let attributes = Attributes::from_iter([(Attribute::ContentType, MEDIA_TYPE)]);
        let part_bytes = self.part_bytes.max(bytes.div_ceil(MAX_PARTS));
        if bytes <= part_bytes {
            let body = read(file, bytes)?;
            let options = PutOptions { attributes, ..PutOptions::default() };
            return self.store.put_opts(key, body.into(), options).await.map(drop).map_err(|error| self.fault(&error));
        }
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let mut upload = self.store.put_multipart_opts(key, options).await.map_err(|error| self.fault(&error))?;
        let sent = self.put_parts(file, bytes, part_bytes, &mut *upload).await;
        if sent.is_err() {
            // A store that cannot do it now keeps the parts until a rule of the bucket removes them.
            let _ = tokio::time::timeout(ABORT_TIME, upload.abort()).await;
        }
        sent
    }

    /// Sends the parts one after the other, so that one is in memory.
    async fn put_parts(
        &self,
        file: &mut File,
        bytes: u64,
        part_bytes: u64,
        upload: &mut dyn MultipartUpload,
    ) -> Result<(), UploadError> {
        let mut left = bytes;
        while left > 0 {
            let part = read(file, left.min(part_bytes))?;
            left -= part.len() as u64;
            upload.put_part(part.into()).await.map_err(|error| self.fault(&error))?;
        }
        upload.complete().await.map(drop).map_err(|error| self.fault(&error))
    }

    async fn confirm(&self, bytes: u64, key: &Path) -> Result<(), UploadError> {
        match self.store.head(key).await {
            Ok(found) if found.size == bytes => Ok(()),
            Ok(found) => {
                let why = format!("the object has {} bytes and the file {bytes}", found.size);
                Err(UploadError::Store(Outage { state: DestinationState::Away, why }))
            }
            Err(error) => Err(self.explained(&error, key).await),
        }
    }

    /// The answer to a request for the length only has a status and no words: asks for a byte, which is refused with words.
    async fn explained(&self, error: &Error, key: &Path) -> UploadError {
        match self.store.get_range(key, 0..1).await {
            Err(Error::NotFound { .. }) | Ok(_) => self.fault(error),
            Err(explained) => self.fault(&explained),
        }
    }

    /// What an error means: the rule of all destinations, for the status that the store has answered last.
    fn fault(&self, error: &Error) -> UploadError {
        let (status, why) = (self.status.load(Relaxed), shown(error, &self.secrets));
        let away = |why| UploadError::Store(Outage { state: DestinationState::Away, why });
        match AttemptOutcome::of_status(status, why, None) {
            AttemptOutcome::Refusing(why) => refusing(why),
            // Stores of S3 also answer 400 to wrong credentials, regions and clocks.
            AttemptOutcome::Bad(why) if BAD_SETTINGS.iter().any(|code| why.contains(code)) => refusing(why),
            AttemptOutcome::Bad(why) if why.contains("RequestTimeout") => away(why),
            AttemptOutcome::Bad(why) | AttemptOutcome::TooLarge(why) => UploadError::Bad(why),
            AttemptOutcome::Away(why, _) => away(why),
            // An answer that is no error, and that object_store does not understand.
            AttemptOutcome::Accepted | AttemptOutcome::Duplicate | AttemptOutcome::Partial(..) => {
                away(shown(error, &self.secrets))
            }
        }
    }
}

fn open(
    options: &UploadOptions,
    connector: Connector,
    settings: Vec<(&str, String)>,
) -> object_store::Result<Box<dyn ObjectStore>> {
    let backoff = BackoffConfig { init_backoff: RETRY_PAUSES.0, max_backoff: RETRY_PAUSES.1, base: 2. };
    let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT };
    let bucket = &options.url.bucket;
    Ok(match options.url.provider {
        Provider::S3 => {
            let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
            for (key, value) in settings {
                builder = builder.with_config(key.parse()?, value);
            }
            Box::new(builder.with_retry(retry).with_http_connector(connector).build()?)
        }
        Provider::Gcs => {
            let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
            for (key, value) in settings {
                builder = builder.with_config(key.parse()?, value);
            }
            Box::new(builder.with_retry(retry).with_http_connector(connector).build()?)
        }
        Provider::Azure => {
            let mut builder = MicrosoftAzureBuilder::new().with_container_name(bucket);
            for (key, value) in settings {
                builder = builder.with_config(key.parse()?, value);
            }
            Box::new(builder.with_retry(retry).with_http_connector(connector).build()?)
        }
    })
}

/// The next `bytes` of a file: a file that is shorter now is a fault.
fn read(file: &mut File, bytes: u64) -> io::Result<Vec<u8>> {
    let mut part = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    file.read_exact(&mut part)?;
    Ok(part)
}

/// The name of the object with this number; the first has none.
fn numbered(key: &Path, number: u32) -> Path {
    let text = key.as_ref();
    match (number, text.strip_suffix(".parquet")) {
        (1.., Some(stem)) => Path::parse(format!("{stem}-{number}.parquet")).unwrap_or_else(|_| key.clone()),
        _ => key.clone(),
    }
}

/// An error in one line of limited length, without secrets. Of an answer in XML, its code and its message.
fn shown(error: &Error, secrets: &[String]) -> String {
    let mut text = error.to_string();
    for secret in secrets.iter().filter(|secret| secret.len() >= SHORTEST_SECRET) {
        text = text.replace(secret, "***");
    }
    let of = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value.to_owned())
    };
    if let (Some(code), Some(message)) = (of("Code"), of("Message"))
        && let Some((before, _)) = text.split_once('<')
    {
        text = format!("{before}{code}: {message}");
    }
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = text.floor_char_boundary(SHOWN_BYTES);
    text[..end].trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_in_the_words_of_the_server_without_secrets() {
        let xml = "403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>key hidden\nno</Message><X/></Error>";
        let error = Error::Generic { store: "S3", source: xml.into() };
        let shown = |error| shown(error, &["hidden".to_owned()]);
        assert_eq!(shown(&error), "Generic S3 error: 403 Forbidden: AccessDenied: key *** no");
        let error = Error::Generic { store: "S3", source: "ä".repeat(1000).into() };
        assert!(shown(&error).len() <= SHOWN_BYTES);
    }

    #[test]
    fn an_object_whose_name_is_taken_is_numbered_before_its_extension() {
        let key = Path::from("a/log-x.20260101T000000.000.parquet");
        assert_eq!(numbered(&key, 0), key);
        assert_eq!(numbered(&key, 2).as_ref(), "a/log-x.20260101T000000.000-2.parquet");
    }
}
