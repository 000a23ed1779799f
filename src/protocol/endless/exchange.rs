//! The listener: which requests are uploads, and what all others are told (rules 2 to 7, 24 and 25).

use std::sync::Arc;

use crate::event::Reason;
use crate::memory::MemoryBudget;
use crate::protocol::{Exchange, Head, HeadDecision, Now, Request, Response};

use super::Options;
use super::dedup::Memory;
use super::wire::Version;
use super::work::EndlessWork;

/// What the requests of one listener share.
#[derive(Debug)]
pub struct EndlessExchange {
    shared: Arc<Shared>,
}

/// Options, and the memory for repeats.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) memory: Memory,
    pub(super) budget: Arc<MemoryBudget>,
}

impl EndlessExchange {
    /// A listener that has seen nothing yet.
    pub fn new(options: Options, budget: &Arc<MemoryBudget>) -> Self {
        let memory = Memory::new(options.dedup);
        EndlessExchange { shared: Arc::new(Shared { options, memory, budget: budget.clone() }) }
    }
}

impl Exchange for EndlessExchange {
    type Work = EndlessWork;

    fn admit(&self, head: &Head, _now: Now) -> HeadDecision {
        let answer = |response| HeadDecision::Answer(response, Reason::Unsupported);
        match head.method.as_str() {
            // Health checks, and agents of old (rule 25).
            "GET" | "HEAD" => return answer(Response::text(200, "tributary takes Endless OS metrics here")),
            "PUT" => {}
            method => return answer(Response::not_allowed(method, "PUT, GET, HEAD")),
        }
        let target = match Target::read(head.path(), &self.shared.options.path_prefix) {
            Ok(target) => target,
            Err(sentence) => return answer(Response::text(404, sentence)),
        };
        // Whatever the two oldest versions hold, they are told 200 (rule 4): their agents cannot be helped any more.
        if target.version >= Version::V2 {
            if target.hash.is_none() {
                return answer(Response::text(404, "the path must end with a SHA-512 in 128 hexadecimal digits"));
            }
            if let Encoding::Unknown = Encoding::read(head) {
                return answer(Response::text(415, "the body may be plain or in gzip, and in nothing else"));
            }
        }
        HeadDecision::Take { max_body_bytes: self.shared.options.max_body_bytes, key: "max_body_bytes" }
    }

    fn work(&self, request: Request, _now: Now) -> EndlessWork {
        let target = Target::read(request.head.path(), &self.shared.options.path_prefix);
        let encoding = Encoding::read(&request.head);
        // Only what was admitted gets here, and that has a target.
        let target = target.unwrap_or(Target { version: Version::V3, hash: None });
        EndlessWork::new(request, target, encoding, self.shared.clone())
    }
}

/// What the path of an upload says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) version: Version,
    /// What the SHA-512 of the bundle should be; `None` where the path has something else in its place.
    pub(super) hash: Option<[u8; 64]>,
}

impl Target {
    /// Reads `<prefix>/<version>/<hash>`.
    ///
    /// # Errors
    /// The path is no upload's; a sentence says why.
    fn read(path: &str, prefix: &str) -> Result<Target, &'static str> {
        const FORM: &str = "uploads go to PUT /<version>/<SHA-512 of the bundle>";
        let rest = path.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')).ok_or(FORM)?;
        let (version, hash) = rest.split_once('/').ok_or(FORM)?;
        let version = Version::by_name(version).ok_or("this protocol has the versions 0, 1, 2 and 3")?;
        Ok(Target { version, hash: hash_from_hex(hash) })
    }
}

/// In upper or lower case (rule 1).
fn hash_from_hex(text: &str) -> Option<[u8; 64]> {
    let digits = text.as_bytes();
    if digits.len() != 128 {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let mut hash = [0; 64];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(hash)
}

/// What was done to the bundle before it was sent (rule 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    Plain,
    Gzip,
    Unknown,
}

impl Encoding {
    /// Agents name it in a header of their own, but for some weeks in which they used the standard one.
    pub(super) fn read(head: &Head) -> Encoding {
        let named = ["x-endless-content-encoding", "content-encoding"].map(|name| {
            let is_there = head.headers.iter().any(|(known, _)| known == name);
            is_there.then(|| head.header(name).unwrap_or("?"))
        });
        match named[0].or(named[1]).map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "identity") => Encoding::Plain,
            Some("gzip" | "x-gzip") => Encoding::Gzip,
            Some(_) => Encoding::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_version_and_a_hash_behind_the_prefix() {
        let hash = "0aF".repeat(43)[..128].to_owned();
        let target = Target::read(&format!("/a/b/2/{hash}"), "/a/b").unwrap();
        assert_eq!(target.version, Version::V2);
        assert_eq!(target.hash.unwrap()[..3], [0x0A, 0xF0, 0xAF]);
        assert_eq!(Target::read("/0/", "").unwrap(), Target { version: Version::V0, hash: None });
        assert_eq!(Target::read(&format!("/3/{hash}/"), "").unwrap().hash, None);
        assert_eq!(Target::read(&format!("/3/{}g", &hash[1..]), "").unwrap().hash, None);
        for path in ["/4/x", "/a/2/x", "/3", "/", "", "3/x"] {
            assert!(Target::read(path, "").is_err(), "{path}");
        }
    }

    #[test]
    fn the_agents_own_header_comes_before_the_standard_one() {
        let read = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
            Encoding::read(&Head { method: "PUT".into(), target: "/".into(), headers })
        };
        assert_eq!(read(&[]), Encoding::Plain);
        assert_eq!(read(&[("content-encoding", "GZIP")]), Encoding::Gzip);
        assert_eq!(read(&[("content-encoding", "br"), ("x-endless-content-encoding", "gzip")]), Encoding::Gzip);
        assert_eq!(read(&[("x-endless-content-encoding", "bzip2")]), Encoding::Unknown);
        assert_eq!(read(&[("x-endless-content-encoding", "\u{0}")]), Encoding::Unknown);
    }
}
