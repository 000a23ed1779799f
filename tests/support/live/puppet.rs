//! A sink that the test controls.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::Notify;
use tributary::sink::encode::{Encoder, Format};
use tributary::sink::{ActionError, Selection, Sink, SinkError};

/// The behaviour of the next flush.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mood {
    Write,
    /// It waits until the mood changes.
    Stall,
    Retry,
    Fail,
    Panic,
    Close,
    /// A write waits until the mood changes.
    StallWriting,
    /// The next write fails.
    FailWriting,
    /// The next write panics.
    PanicWriting,
}

/// The controls of all puppets of one sink, which exist one after another.
#[derive(Clone)]
pub struct Strings(Arc<Shared>);

struct Shared {
    mood: Mutex<Mood>,
    changed: Notify,
    /// Lines.
    written: Mutex<Vec<Vec<u8>>>,
    writes: Mutex<u64>,
    flushes: Mutex<u64>,
}

pub struct Puppet {
    strings: Strings,
    waiting: Vec<Vec<u8>>,
}

impl Strings {
    pub fn new(mood: Mood) -> Strings {
        let shared = Shared {
            mood: Mutex::new(mood),
            changed: Notify::new(),
            written: Mutex::default(),
            writes: Mutex::default(),
            flushes: Mutex::default(),
        };
        Strings(Arc::new(shared))
    }

    /// A new puppet. A daemon creates one at each start of a sink.
    pub fn puppet(&self) -> Puppet {
        Puppet { strings: self.clone(), waiting: Vec::new() }
    }

    pub fn set(&self, mood: Mood) {
        *self.0.mood.lock().unwrap() = mood;
        self.0.changed.notify_waiters();
    }

    /// The data that flushes have written.
    pub fn written(&self) -> Vec<Value> {
        self.0.written.lock().unwrap().iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    pub fn written_names(&self) -> Vec<String> {
        self.written().iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The number of batches that were to be written.
    pub fn writes(&self) -> u64 {
        *self.0.writes.lock().unwrap()
    }

    /// The number of attempts to flush data.
    pub fn flushes(&self) -> u64 {
        *self.0.flushes.lock().unwrap()
    }

    fn mood(&self) -> Mood {
        *self.0.mood.lock().unwrap()
    }

    async fn while_mood(&self, stalls: Mood) {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.mood() != stalls {
                return;
            }
            changed.await;
        }
    }
}

impl Sink for Puppet {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        *self.strings.0.writes.lock().unwrap() += 1;
        self.strings.while_mood(Mood::StallWriting).await;
        match self.strings.mood() {
            Mood::FailWriting => return Err(SinkError::Failed(fault())),
            Mood::PanicWriting => panic!("on purpose"),
            _ => {}
        }
        let mut encoder = Encoder::new(Format::Json);
        for event in events.events() {
            let mut line = Vec::new();
            encoder.encode(event, &mut line);
            self.waiting.push(line);
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        *self.strings.0.flushes.lock().unwrap() += 1;
        self.strings.while_mood(Mood::Stall).await;
        match self.strings.mood() {
            Mood::Retry => Err(SinkError::Retry(fault())),
            Mood::Fail | Mood::FailWriting => Err(SinkError::Failed(fault())),
            Mood::Panic | Mood::PanicWriting => panic!("on purpose"),
            Mood::Close => Err(SinkError::Closed),
            Mood::Write | Mood::Stall | Mood::StallWriting => {
                self.strings.0.written.lock().unwrap().append(&mut self.waiting);
                Ok(())
            }
        }
    }
}

fn fault() -> ActionError {
    ActionError { action: "dance".to_owned(), source: io::Error::other("the strings are tangled") }
}
