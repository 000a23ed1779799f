//! Work that waits: for a disk, for a resolver of names, for a long computation.
//!
//! Threads that this crate starts itself are started here. The system may refuse one (`ulimit -u`, `TasksMax=`, `pids.max`): then
//! the caller gets an error. tokio's `spawn_blocking` panics then, or waits until a thread is free.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::block_in_place;

/// Runs `work`, so that other tasks of this thread continue on another thread.
pub fn run<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

/// Starts a thread.
///
/// # Errors
/// The system allows no further one. The error says so, and what to raise.
pub fn thread<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(work).map_err(explained)
}

fn explained(error: io::Error) -> io::Error {
    let why = format!(
        "cannot start a thread: {error}; raise the number of processes and threads that are allowed (`ulimit -u`, TasksMax= of \
         the unit, pids.max of the container)"
    );
    io::Error::new(error.kind(), why)
}

/// Checks that the system allows `number` further threads now.
///
/// # Errors
/// It does not.
pub fn check_threads(number: usize) -> io::Result<()> {
    let is_checked = Arc::new((Mutex::new(false), Condvar::new()));
    let start = |_| {
        let is_checked = is_checked.clone();
        thread("check", move || {
            let (lock, changed) = &*is_checked;
            let is_checked = lock.lock().unwrap_or_else(PoisonError::into_inner);
            drop(changed.wait_while(is_checked, |is_checked| !*is_checked));
        })
    };
    // They run at the same time.
    let mut threads: Vec<_> = (0..number).map(start).collect();
    *is_checked.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    is_checked.1.notify_all();
    let started = threads.iter().filter(|thread| thread.is_ok()).count();
    let refused = threads.iter().position(Result::is_err).map(|at| threads.swap_remove(at));
    threads.into_iter().flatten().for_each(|thread| drop(thread.join()));
    match refused {
        Some(Err(error)) if number == 1 => Err(error),
        Some(Err(error)) => {
            let why = format!("{number} threads are needed, and {started} can be started now: {error}");
            Err(io::Error::new(error.kind(), why))
        }
        _ => Ok(()),
    }
}

/// Work on a thread of its own. The future has its result, or an error if it has panicked.
#[derive(Debug)]
pub struct Job<T> {
    thread: JoinHandle<()>,
    result: oneshot::Receiver<T>,
}

impl<T: Send + 'static> Job<T> {
    /// Starts `work` on a thread of this name.
    ///
    /// # Errors
    /// Those of [`thread()`].
    pub fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Job<T>> {
        let (sender, result) = oneshot::channel();
        // The receiver may be gone.
        let thread = thread(name, move || drop(sender.send(work())))?;
        Ok(Job { thread, result })
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

impl<T> Future for Job<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let result = ready!(Pin::new(&mut self.result).poll(context));
        Poll::Ready(result.map_err(|_| io::Error::other("it panicked, which is a bug of tributary")))
    }
}

/// The addresses of `HOST:PORT`.
///
/// # Errors
/// Those of the resolver, and those of [`thread()`].
pub async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let address = address.to_owned();
    let resolve = move || std::net::ToSocketAddrs::to_socket_addrs(&address).map(Iterator::collect);
    Job::start("resolver", resolve)?.await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_has_a_result_or_the_error_that_it_panicked() {
        assert_eq!(Job::start("job", || 7).unwrap().await.unwrap(), 7);
        let panicked = Job::<()>::start("job", || std::panic::resume_unwind(Box::new(()))).unwrap().await;
        assert!(panicked.unwrap_err().to_string().contains("panicked"));
    }

    #[tokio::test]
    async fn addresses_are_resolved_with_and_without_a_thread() {
        assert_eq!(resolve("127.0.0.1:7").await.unwrap(), [SocketAddr::from(([127, 0, 0, 1], 7))]);
        assert!(resolve("localhost:7").await.unwrap().iter().all(|address| address.ip().is_loopback()));
        assert!(resolve("no port").await.is_err());
    }

    #[test]
    fn a_few_threads_are_allowed_and_released() {
        check_threads(8).unwrap();
        check_threads(8).unwrap();
    }
}
