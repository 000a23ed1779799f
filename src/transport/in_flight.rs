//! Requests that are worked on: by the task that waits for the response, and, when that has ended, by a task of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::sleep;

use tributary_pipeline::Unconfirmed;
use tributary_protocol::Response;
use tributary_sink::AckLevel;

use super::context::ConnectionContext;

/// How often a request that waits looks whether a sink is known to be unable to write.
pub(super) const STUCK_CHECK: Duration = Duration::from_millis(200);

/// A response, and the level that the events of its request have reached if it is a success.
pub(super) type LeveledResponse = (Response, AckLevel);

/// A job that the task which waits for its response works on. When that task waits no longer, a task of its own does.
pub(super) struct InFlightRequest<'a> {
    /// `None`: it has ended.
    job: Option<Pin<Box<dyn Future<Output = LeveledResponse> + Send>>>,
    unconfirmed: Unconfirmed,
    context: &'a ConnectionContext,
}

impl<'a> InFlightRequest<'a> {
    pub(super) fn new(
        job: impl Future<Output = LeveledResponse> + Send + 'static,
        unconfirmed: Unconfirmed,
        context: &'a ConnectionContext,
    ) -> Self {
        InFlightRequest { job: Some(Box::pin(job)), unconfirmed, context }
    }
}

impl Future for InFlightRequest<'_> {
    /// `None`: the job panicked.
    type Output = Option<LeveledResponse>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LeveledResponse>> {
        let Some(job) = &mut self.job else { return Poll::Ready(None) };
        // A job that panicked is not polled again.
        let answer = match catch_unwind(AssertUnwindSafe(|| job.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(answer)) => Some(answer),
            Err(_) => None,
        };
        self.job = None;
        Poll::Ready(answer)
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        let Some(job) = self.job.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (abort, stop, unconfirmed) =
                (self.context.abort.clone(), self.context.stop.clone(), self.unconfirmed.clone());
            // A stop does not wait for a sink that cannot write: the peer sends the events again.
            let needless = async move {
                stop.cancelled().await;
                while !unconfirmed.is_stuck() {
                    sleep(STUCK_CHECK).await;
                }
            };
            let job = async move {
                tokio::select! { _ = job => {}, () = needless => {} }
            };
            self.context.tasks.spawn_on(async move { abort.run_until_cancelled_owned(job).await }, &runtime);
        }
    }
}
