//! Blocking work of a sink, away from the async threads.

use std::io;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

/// State that is either here or away with a blocking task. A caller that stops waiting (a shutdown, say) loses
/// nothing: the task ends its work, and the next call waits for it.
#[derive(Debug)]
pub(super) struct Offload<S> {
    here: Option<S>,
    away: Option<JoinHandle<S>>,
}

impl<S: Send + 'static> Offload<S> {
    pub(super) fn new(state: S) -> Self {
        Offload { here: Some(state), away: None }
    }

    /// The state, once no task has it.
    ///
    /// # Errors
    /// A task has panicked or was thrown away by a runtime that stops; the state is lost for good.
    pub(super) async fn here(&mut self) -> io::Result<&mut S> {
        if let Some(task) = &mut self.away {
            let returned = task.await;
            self.away = None;
            self.here = Some(returned.map_err(io::Error::other)?);
        }
        self.here.as_mut().ok_or_else(gone)
    }

    /// Does blocking work on the state and answers its result.
    ///
    /// # Errors
    /// As [`Offload::here`].
    pub(super) async fn run<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> io::Result<R> {
        self.here().await?;
        let mut state = self.here.take().ok_or_else(gone)?;
        let (answer, mut result) = oneshot::channel();
        self.away = Some(spawn_blocking(move || {
            // Nobody waits any more if the call was given up.
            let _ = answer.send(work(&mut state));
            state
        }));
        self.here().await?;
        result.try_recv().map_err(io::Error::other)
    }
}

fn gone() -> io::Error {
    io::Error::other("an earlier call panicked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_is_done_before_the_next() {
        let mut numbers = Offload::new(Vec::new());
        let (release, released) = std::sync::mpsc::channel::<()>();
        {
            let mut given_up = Box::pin(numbers.run(move |numbers| {
                released.recv().unwrap();
                numbers.push(1);
            }));
            let first = poll_fn(|context| Poll::Ready(given_up.as_mut().poll(context))).await;
            assert!(first.is_pending());
        }
        release.send(()).unwrap();
        numbers.run(|numbers| numbers.push(2)).await.unwrap();
        assert_eq!(numbers.here().await.unwrap(), &[1, 2]);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_now_and_later() {
        let mut state = Offload::new(());
        assert!(state.run(|()| panic!("on purpose")).await.is_err());
        assert!(state.run(|()| ()).await.is_err());
    }
}
