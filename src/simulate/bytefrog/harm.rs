//! The harm that a collector can do to a traced program (section 1.4).

use std::error::Error;
use std::fmt;
use std::io;

/// What would have happened to the program of a real agent, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Harm {
    /// The JVM ends with SIGABRT; the program never runs.
    Abort(String),
    /// The program waits for ever, at its start or at its end.
    Hang(String),
    /// The program ends with status 0 and has not run.
    NeverRun(String),
    /// The program continues, and nothing more of it is traced.
    TraceDies(String),
    /// The collector can no longer control the agent.
    ControlLost(String),
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (effect, why) = match self {
            Harm::Abort(why) => ("the JVM would have aborted", why),
            Harm::Hang(why) => ("the program would have hung", why),
            Harm::NeverRun(why) => ("the program would have ended without having run", why),
            Harm::TraceDies(why) => ("the trace would have died", why),
            Harm::ControlLost(why) => ("the agent would have been out of control", why),
        };
        write!(f, "{effect}: {why}")
    }
}

impl Error for Harm {}

impl From<Harm> for io::Error {
    fn from(harm: Harm) -> Self {
        io::Error::other(harm)
    }
}
