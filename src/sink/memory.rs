//! A sink that keeps events in memory, for tests and for programs that embed the collector.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::encode::{Encoder, Format};
use super::{ActionError, Selection, Sink, SinkError};

/// Keeps events as JSON lines, which are read through a [`MemoryLines`].
#[derive(Debug)]
pub struct Memory {
    encoder: Encoder,
    /// Encoded events before their flush.
    waiting: VecDeque<String>,
    most: usize,
    lines: Arc<MemoryLines>,
}

/// The handle by which the lines of a [`Memory`] sink are read.
#[derive(Debug, Default)]
pub struct MemoryLines(Mutex<Vec<String>>);

impl Memory {
    /// A sink without limit, and the handle to read it.
    pub fn new() -> (Memory, Arc<MemoryLines>) {
        Memory::bounded(usize::MAX)
    }

    /// A sink that keeps at most `most` lines. It drops none: while it is full, `flush` returns [`SinkError::Retry`], until
    /// [`MemoryLines::take`] removes lines.
    pub fn bounded(most: usize) -> (Memory, Arc<MemoryLines>) {
        let lines = Arc::<MemoryLines>::default();
        (Memory { encoder: Encoder::new(Format::Json), waiting: VecDeque::new(), most, lines: lines.clone() }, lines)
    }
}

impl MemoryLines {
    /// A copy of all lines that were flushed and not taken: one JSON line per event, without line feed.
    pub fn lines(&self) -> Vec<String> {
        self.locked().clone()
    }

    /// The same without the first `first` lines.
    pub fn lines_from(&self, first: usize) -> Vec<String> {
        self.locked().get(first..).unwrap_or_default().to_vec()
    }

    /// Removes and returns all lines, as [`MemoryLines::lines`] does without removing them.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.locked())
    }

    /// No code panics while it holds the lock, so a poisoned lock can be used.
    fn locked(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Memory {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        let mut line = Vec::new();
        for event in events.events() {
            line.clear();
            self.encoder.encode(event, &mut line);
            let text = String::from_utf8_lossy(&line);
            self.waiting.push_back(text.trim_end_matches('\n').to_owned());
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        let mut lines = self.lines.locked();
        let space = self.most.saturating_sub(lines.len()).min(self.waiting.len());
        lines.extend(self.waiting.drain(..space));
        if self.waiting.is_empty() {
            return Ok(());
        }
        Err(SinkError::Retry(ActionError {
            action: format!("keep more than {} lines in memory", self.most),
            source: io::ErrorKind::StorageFull.into(),
        }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Kinds;
    use tributary_event::{Batch, BatchBuilder, Header, Origin, Position, Severity, UnixNanos};

    /// Log events of these names.
    pub(crate) fn batch_of(names: &[&str]) -> Batch {
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("datadog", "web".into(), "peer".into(), 1)));
        for name in names {
            let name = batch.push_text(name).into();
            let header = Header { name, time: None, observed: UnixNanos(0), position: Position::default() };
            batch.event(header).log(Severity::Info, None);
        }
        batch.take()
    }

    fn has_names(lines: &[String], names: &[&str]) {
        assert_eq!(lines.len(), names.len());
        for (line, name) in lines.iter().zip(names) {
            assert!(line.contains(&format!("\"{name}\"")) && line.ends_with('}'), "{line}");
        }
    }

    #[tokio::test]
    async fn lines_are_visible_from_the_flush_until_they_are_taken() {
        let (mut sink, lines) = Memory::new();
        let batch = batch_of(&["a", "b"]);
        sink.write(Selection::new(&batch, Kinds::ALL)).await.unwrap();
        assert!(lines.lines().is_empty());
        sink.flush().await.unwrap();
        has_names(&lines.lines(), &["a", "b"]);
        has_names(&lines.take(), &["a", "b"]);
        assert!(lines.lines().is_empty());
    }

    #[tokio::test]
    async fn a_full_sink_retries_the_rest_until_lines_are_taken() {
        let (mut sink, lines) = Memory::bounded(2);
        let batch = batch_of(&["a", "b", "c"]);
        sink.write(Selection::new(&batch, Kinds::ALL)).await.unwrap();
        assert!(matches!(sink.flush().await, Err(SinkError::Retry(_))));
        assert!(matches!(sink.flush().await, Err(SinkError::Retry(_))));
        has_names(&lines.take(), &["a", "b"]);
        sink.flush().await.unwrap();
        has_names(&lines.lines(), &["c"]);
    }
}
