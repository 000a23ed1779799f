//! Why a sink did not get events.

use tributary_event::{LossView, Reason};

/// Why a sink did not get events, as the loss in its output says it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LossCause {
    /// Its queue was full.
    QueueFull,
    /// An operator has removed them from its queue.
    Removed,
    /// It could not write them, or its destination has refused them.
    Failed,
}

impl LossCause {
    /// The cause that a loss of such a sink reports.
    pub fn of(loss: &LossView<'_>) -> LossCause {
        match loss.reason {
            Reason::Shed if loss.detail.text() == LossCause::Removed.detail() => LossCause::Removed,
            Reason::Shed => LossCause::QueueFull,
            _ => LossCause::Failed,
        }
    }

    /// The reason of the loss.
    pub fn reason(self) -> Reason {
        match self {
            LossCause::QueueFull | LossCause::Removed => Reason::Shed,
            LossCause::Failed => Reason::Failed,
        }
    }

    /// The detail of the loss.
    pub fn detail(self) -> &'static str {
        match self {
            LossCause::QueueFull => "the queue of this sink was full",
            LossCause::Removed => "an operator removed them from the spool of this sink",
            LossCause::Failed => "this sink could not write them, or its destination has refused them",
        }
    }
}
