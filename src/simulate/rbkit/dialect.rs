//! The dialects of the protocol. Their names are those of the protocol notes.

use std::str::FromStr;

/// What the process speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RbkitDialect {
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

impl RbkitDialect {
    /// Every dialect.
    pub const ALL: [RbkitDialect; 4] =
        [RbkitDialect::V0110, RbkitDialect::Master21, RbkitDialect::Master21Raw, RbkitDialect::Spec21];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            RbkitDialect::V0110 => "v0.1.10",
            RbkitDialect::Master21 => "master-2.1",
            RbkitDialect::Master21Raw => "master-2.1-raw",
            RbkitDialect::Spec21 => "spec-2.1",
        }
    }

    pub(super) fn is_raw(self) -> bool {
        self != RbkitDialect::Master21
    }

    /// The libzmq that is bundled with the gem speaks ZMTP 3.0, a current one 3.1.
    pub(super) fn zmtp_minor(self) -> u8 {
        u8::from(self == RbkitDialect::Master21)
    }
}

impl FromStr for RbkitDialect {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = RbkitDialect::ALL.map(RbkitDialect::as_str).join(", ");
        RbkitDialect::ALL.into_iter().find(|dialect| dialect.as_str() == name).ok_or(format!("expected one of {names}"))
    }
}
