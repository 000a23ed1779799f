//! The log of a daemon that runs in this thread.
//!
//! One subscriber serves all tests of this program: with a subscriber for each thread, `tracing` can ask a thread that
//! has none whether an event is of interest, and keeps its answer for all threads.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, Once};

thread_local! {
    /// Gets what this thread logs.
    static LOG: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// The lines of the log of this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects what this thread logs from now on.
    pub(crate) fn of_this_thread() -> Log {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            let log = tracing_subscriber::fmt().with_ansi(false).with_writer(|| LogOfThread).without_time().finish();
            tracing::subscriber::set_global_default(log).unwrap();
            tracing::callsite::rebuild_interest_cache();
        });
        let log = Log::default();
        LOG.set(Some(log.clone()));
        log
    }

    /// What was logged so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The one line that contains this.
    #[track_caller]
    pub(crate) fn line(&self, what: &str) -> String {
        let text = self.text();
        let lines: Vec<_> = text.lines().filter(|line| line.contains(what)).collect();
        assert_eq!(lines.len(), 1, "{what}: {text}");
        lines[0].to_owned()
    }
}

/// Writes to the log of the current thread, if that is collected.
struct LogOfThread;

impl io::Write for LogOfThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow(|log| {
            if let Some(log) = log {
                log.0.lock().unwrap().extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
