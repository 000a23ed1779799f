//! The dialects of the protocol. Their names are those of the protocol notes.

use std::str::FromStr;

/// What the process speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dialect {
    /// The released gem.
    V0110,
    /// Its master branch, built with a current msgpack-c.
    #[default]
    Master21,
    /// Its master branch, built with the msgpack-c of its time: texts of 32 bytes and more are `raw16`.
    Master21Raw,
    /// The branch that the specification describes. It sends allocation snapshots and no object events.
    Spec21,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Dialect; 4] = [Dialect::V0110, Dialect::Master21, Dialect::Master21Raw, Dialect::Spec21];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::V0110 => "v0.1.10",
            Dialect::Master21 => "master-2.1",
            Dialect::Master21Raw => "master-2.1-raw",
            Dialect::Spec21 => "spec-2.1",
        }
    }

    pub(super) fn is_raw(self) -> bool {
        self != Dialect::Master21
    }

    /// The libzmq that is bundled with the gem speaks ZMTP 3.0, a current one 3.1.
    pub(super) fn zmtp_minor(self) -> u8 {
        u8::from(self == Dialect::Master21)
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Dialect::ALL.map(Dialect::as_str).join(", ");
        Dialect::ALL.into_iter().find(|dialect| dialect.as_str() == name).ok_or(format!("expected one of {names}"))
    }
}
