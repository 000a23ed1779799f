//! Uploads of finished files to a real S3 server: nothing is removed here before it is there, and each event is once in the
//! bucket and the directory together, whatever the network, the server and the daemon do.

mod check;
mod daemon;
mod faults;
mod kept;
mod proxy;
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tributary::event::Batch;
use tributary::options::Secret;
use tributary::sink::Sink as _;
use tributary::sink::UploadTotals;
use tributary::sink::parquet::{Options, Parquet, RetryOptions, UploadOptions, Url};

use self::proxy::Proxy;
use self::server::{BUCKET, Server};
use crate::live;
use crate::parquet::{archived, assert_same, files, read, take, write};
use tributary_workloads as workloads;

/// The key of the tests. It is in no text.
const KEY: &str = "the-secret-access-key";

/// A server, and a proxy before it.
struct Store {
    server: Server,
    proxy: Proxy,
}

impl Store {
    /// `None`: there is none, which was printed.
    fn start() -> Option<Store> {
        let server = Server::start()?;
        let proxy = Proxy::start(server.address);
        Some(Store { server, proxy })
    }

    /// The options of an archive in this directory that is uploaded through the proxy, below `archive/`.
    fn options(&self, directory: &Path) -> Options {
        let settings = [
            ("aws_endpoint", format!("http://{}", self.proxy.address)),
            ("aws_access_key_id", "id-of-the-test".to_owned()),
            ("aws_secret_access_key", KEY.to_owned()),
        ];
        let upload = UploadOptions {
            allow_http: true,
            retry: RetryOptions {
                shortest: Duration::from_millis(10),
                longest: Duration::from_millis(50),
                max_delay: Duration::from_millis(50),
            },
            settings: settings.map(|(key, value)| (key, Secret::Text(value))).to_vec(),
            ..UploadOptions::to(Url::parse(&format!("s3://{BUCKET}/archive")).unwrap())
        };
        Options { upload: Some(upload), ..crate::parquet::options(directory) }
    }

    /// Each event is once in the bucket and the directory together. A file that is in both is the same file.
    fn assert_exactly_once(&mut self, directory: &Path, batches: &[Batch]) {
        let fetched = tempfile::tempdir().unwrap();
        self.server.fetch(fetched.path());
        let mut all = BTreeMap::new();
        for directory in [directory, &fetched.path().join("archive")] {
            for path in files(directory, ".parquet") {
                let name = path.strip_prefix(directory).unwrap().to_owned();
                let bytes = fs::read(&path).unwrap();
                let before = all.insert(name, (bytes.clone(), read(&path)));
                assert!(before.is_none_or(|(before, _)| before == bytes), "{} differs", path.display());
            }
        }
        assert!(files(directory, ".rows").is_empty());
        let found: Vec<_> = all.into_values().flat_map(|(_, batches)| batches).collect();
        assert_same(&found, batches, "the bucket and the directory");
    }
}

/// Some batches of every protocol.
fn batches() -> Vec<Batch> {
    workloads::all().into_iter().flat_map(|workload| workload.batches().into_iter().take(2)).collect()
}

fn uploads(sink: &Parquet) -> UploadTotals {
    sink.files().unwrap().totals().uploads.unwrap()
}

/// The same options with another upload.
fn with_upload(options: Options, change: impl FnOnce(&mut UploadOptions)) -> Options {
    let mut upload = options.upload.clone().unwrap();
    change(&mut upload);
    Options { upload: Some(upload), ..options }
}

/// Waits until an attempt has failed for a reason with this text. Returns the reason.
async fn until_fault(sink: &Parquet, text: &str) -> String {
    live::until(text, || uploads(sink).fault.filter(|fault| fault.contains(text))).await
}

/// Lets the sink work until the condition is true.
async fn ticked_until(mut sink: Parquet, condition: impl Fn(&Parquet) -> bool) -> Parquet {
    live::until_async("the sink has worked", async || {
        if condition(&sink) {
            return Some(());
        }
        sink.tick().await.unwrap();
        None
    })
    .await;
    sink
}

#[tokio::test]
async fn finished_files_are_in_the_bucket_and_no_longer_here() {
    for part_bytes in [8 << 20, 4096] {
        let Some(mut store) = Store::start() else { return };
        let directory = tempfile::tempdir().unwrap();
        let options = with_upload(store.options(directory.path()), |upload| upload.part_bytes = part_bytes);
        let mut sink = Parquet::new(options).unwrap();
        take(&mut sink, &batches()).await;
        sink.close().await.unwrap();
        let objects = store.server.objects();
        let totals = uploads(&sink);
        assert_eq!((totals.uploaded, totals.uploaded_bytes), (objects.len() as u64, objects.values().sum()));
        assert_eq!((totals.failed, totals.discarded, totals.waiting), (0, 0, 0), "{totals:?}");
        assert!(archived(directory.path()).is_empty());
        assert_eq!(store.server.ask(&format!("parts {BUCKET}")), "0");
        assert_eq!(store.proxy.puts() > totals.uploaded, part_bytes == 4096, "only large files have parts");
        assert!(objects.keys().any(|name| name.starts_with("archive/span/datadog/span-datadog.")), "{objects:?}");
        store.assert_exactly_once(directory.path(), &batches());
    }
}

#[tokio::test]
async fn files_that_an_earlier_process_has_left_are_uploaded_oldest_first() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = store.options(directory.path());
    write(Options { upload: None, ..options.clone() }, &batches()).await;
    assert!(!files(directory.path(), ".parquet").is_empty());
    let mut sink = Parquet::new(options).unwrap();
    sink.tick().await.unwrap();
    live::until("all files are uploaded", || files(directory.path(), ".parquet").is_empty().then_some(())).await;
    store.assert_exactly_once(directory.path(), &batches());
    // Without a file, the directories of kinds are gone as well.
    assert!(!directory.path().join("span").exists());
    sink.close().await.unwrap();
}
