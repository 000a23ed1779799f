//! The log of a daemon that runs in this thread.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

/// The lines of the log of this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects what this thread logs until the guard is dropped.
    pub(crate) fn of_this_thread() -> (Log, DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).without_time().finish();
        (log, tracing::subscriber::set_default(subscriber))
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

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
