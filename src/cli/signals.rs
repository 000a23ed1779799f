//! The signals of a process that serves: those that stop it, and those that would end it although they ask for no stop.

use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::warn;

use tributary_memory::log_throttle::LogThrottle;

/// SIGTERM, SIGINT and SIGQUIT.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl StopSignals {
    pub(super) fn new() -> io::Result<StopSignals> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}

/// What to do instead of sending a signal that is ignored.
const COMMANDS: &str = "SIGHUP reloads the configuration and opens files again; SIGTERM drains and stops";
/// The signals that are ignored, each with what it means or what to do. Their default is to end the process immediately, which
/// hangs traced Java programs.
const IGNORED: [(&str, Number, &str); 8] = [
    ("SIGUSR1", Number::USR1, COMMANDS),
    ("SIGUSR2", Number::USR2, COMMANDS),
    ("SIGALRM", Number::ALARM, COMMANDS),
    ("SIGVTALRM", Number::VTALARM, COMMANDS),
    ("SIGPROF", Number::PROF, COMMANDS),
    ("SIGIO", Number::IO, COMMANDS),
    (
        "SIGXFSZ",
        Number::XFSZ,
        "a file has the largest size that the limits of this process allow (ulimit -f, LimitFSIZE=); what cannot be written \
         is reported by its sink, and tried again",
    ),
    (
        "SIGXCPU",
        Number::XCPU,
        "this process has used the processor time that its limits allow (ulimit -t, LimitCPU=); at the hard limit the system \
         kills it",
    ),
];

/// Ignores these signals until the runtime ends, and logs what arrives: at once, then once a minute at most.
///
/// # Errors
/// A signal cannot be caught.
pub(super) fn ignore_others() -> io::Result<()> {
    for (name, number, note) in IGNORED {
        let mut signals = signal(SignalKind::from_raw(number.as_raw()))?;
        tokio::spawn(async move {
            let throttle = LogThrottle::default();
            while signals.recv().await.is_some() {
                if let Some(suppressed) = throttle.permit() {
                    warn!(signal = name, note, suppressed, "this signal is ignored");
                }
            }
        });
    }
    Ok(())
}
