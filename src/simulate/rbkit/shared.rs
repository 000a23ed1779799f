//! What the two sockets of an agent know of each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::Counts;
use super::{Dialect, Remarks};

/// One agent.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dialect: Dialect,
    state: Mutex<State>,
    /// Something was asked for.
    pub(super) asked: Notify,
}

#[derive(Debug, Default)]
struct State {
    wishes: Wishes,
    counts: Counts,
    bytes: u64,
    remarks: Remarks,
}

/// What collectors want the agent to do.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Wishes {
    /// Objects, garbage collections and their figures are told.
    pub(super) memory: bool,
    /// Stacks are told.
    pub(super) cpu: bool,
    /// By which clock the next ones are taken.
    pub(super) wall_clock: bool,
    /// So many garbage collections are to be done.
    pub(super) collections: u32,
    /// So many dumps are to be made.
    pub(super) dumps: u32,
}

impl Shared {
    pub(super) fn new(dialect: Dialect) -> Self {
        Shared { dialect, state: Mutex::default(), asked: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wishes(&self) -> Wishes {
        self.state().wishes
    }

    /// Changes what is wanted; answers what `change` does.
    pub(super) fn wish<T>(&self, change: impl FnOnce(&mut Wishes) -> T) -> T {
        let answer = change(&mut self.state().wishes);
        self.asked.notify_one();
        answer
    }

    /// What is to be done once, which is then no longer wanted.
    pub(super) fn take_errands(&self) -> Wishes {
        let mut state = self.state();
        let taken = state.wishes;
        state.wishes = Wishes { collections: 0, dumps: 0, ..taken };
        taken
    }

    /// Counts what the system has taken.
    pub(super) fn count(&self, counts: Counts) {
        self.state().counts += counts;
    }

    pub(super) fn count_bytes(&self, bytes: usize) {
        self.state().bytes += bytes as u64;
    }

    pub(super) fn remark(&self, change: impl FnOnce(&mut Remarks)) {
        change(&mut self.state().remarks);
    }

    pub(super) fn remarks(&self) -> Remarks {
        self.state().remarks.clone()
    }

    /// Everything counted so far, and the bytes.
    pub(super) fn total(&self) -> (Counts, u64) {
        let state = self.state();
        (state.counts, state.bytes)
    }
}
