//! `tributary profile` and `tributary heap`: one profile, or one or two heap dumps, of a process that runs.
//!
//! The events come from a running daemon ([`daemon`]: its live view, and commands through its admin endpoint), or from a Ruby
//! process that the command connects to itself ([`process`]): as lines of JSON from the daemon, as batches from the process ([`feed`]).

mod daemon;
mod feed;
pub(super) mod heap;
mod process;
pub(super) mod profile;
mod progress;

use std::time::Duration;

use tokio::time::sleep;

use super::signals::StopSignals;
use feed::{Feed, Followed, Take};

/// How long a daemon and a process have for what they do when nothing else is stated.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes what arrives for this time, or until a signal. Returns whether it was a signal.
async fn follow_for(feed: &mut Feed, time: Duration, signals: &mut StopSignals, take: &mut Take<'_>) -> Followed<bool> {
    let end = async {
        tokio::select! {
            () = sleep(time) => false,
            () = signals.next() => true,
        }
    };
    feed.follow(take, end).await
}
