//! What two parts of a configuration cannot both have: a name, a TCP address, an output file.

use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};

use super::ListenerConfig;
use crate::event::Kind;
use crate::options::Section;

/// Reports a name of a listener or sink that is not valid. Names appear in file paths, metrics and log lines, where they
/// need no quoting.
pub(super) fn check_name(name: &str, section: &mut Section<'_>) {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if !is_plain || !(1..=64).contains(&name.len()) {
        let help = "a name has 1 to 64 characters of A-Z a-z 0-9 _ -";
        section.error_at_name(format!("{} is not a valid name", section.title()), Some(help.into()));
    }
}

/// The TCP addresses that the configuration binds, each with its owner: `listener spans`, `the admin endpoint`.
#[derive(Default)]
pub(super) struct Addresses(Vec<(SocketAddr, String)>);

impl Addresses {
    /// Adds an address that `owner` binds. Returns the owner and the address that cannot be bound beside it. Port 0 is
    /// never in conflict: the system chooses a free port.
    pub(super) fn claim(&mut self, address: SocketAddr, owner: String) -> Option<(&str, SocketAddr)> {
        let other = self.0.iter().position(|(other, _)| overlap(*other, address));
        self.0.push((address, owner));
        other.map(|index| (self.0[index].1.as_str(), self.0[index].0))
    }
}

/// Whether two sockets cannot listen on these addresses at the same time. `0.0.0.0` is every IPv4 address, and `[::]` is
/// every address: a socket on it takes IPv4 connections as well.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |one: IpAddr, other: IpAddr| match one {
        IpAddr::V4(ip) => ip.is_unspecified() && other.is_ipv4(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    };
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    one.port() == other.port() && one.port() != 0 && (a == b || covers(a, b) || covers(b, a))
}

/// The files that sinks write, each set with the name of its sink.
#[derive(Default)]
pub(super) struct OutputFiles(Vec<Claim>);

struct Claim {
    sink: String,
    /// The template, as [`normalize`] writes it.
    template: String,
    /// The template with every protocol, listener and kind that the sink can get; dates stay as they are.
    expansions: Vec<PathBuf>,
}

impl OutputFiles {
    /// Adds the files of a sink: the template `path` with the events of `listeners`. Returns the sink that writes one of
    /// these files too, and the file.
    pub(super) fn claim<'a>(
        &mut self,
        sink: &str,
        path: &str,
        listeners: impl Iterator<Item = &'a ListenerConfig>,
    ) -> Option<(&str, String)> {
        let template = normalize(path);
        let mut expansions: Vec<PathBuf> = listeners
            .map(|listener| (listener.protocol.protocol(), listener.name.as_str()))
            .map(|(protocol, name)| template.replace("{protocol}", protocol.as_str()).replace("{listener}", name))
            .flat_map(|path| match path.contains("{kind}") {
                true => Kind::ALL.map(|kind| path.replace("{kind}", kind.as_str())).to_vec(),
                false => vec![path],
            })
            .map(|expansion| resolve(Path::new(&expansion)))
            .collect();
        expansions.sort();
        expansions.dedup();
        let other = self.0.iter().position(|other| {
            other.template == template
                || expansions.iter().any(|expansion| other.expansions.binary_search(expansion).is_ok())
        });
        self.0.push(Claim { sink: sink.to_owned(), template, expansions });
        let other = &self.0[other?];
        let expansions = &self.0.last()?.expansions;
        let shared = expansions.iter().find(|expansion| other.expansions.binary_search(expansion).is_ok());
        let shared = shared.map_or_else(|| other.template.clone(), |file| file.display().to_string());
        Some((&other.sink, shared))
    }
}

/// A path template as an absolute path without `.` and doubled slashes, with `%F` written out.
fn normalize(path: &str) -> String {
    let mut written_out = String::new();
    let mut characters = path.chars();
    while let Some(c) = characters.next() {
        match (c, c == '%') {
            (_, true) => match characters.next() {
                Some('F') => written_out.push_str("%Y-%m-%d"),
                next => written_out.extend([Some('%'), next].into_iter().flatten()),
            },
            (c, false) => written_out.push(c),
        }
    }
    // It is absolute already where there is no working directory.
    let absolute = std::path::absolute(&written_out).unwrap_or_else(|_| written_out.into());
    let mut normal = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            component => normal.push(component),
        }
    }
    normal.display().to_string()
}

/// A path with the symbolic links of its existing part resolved.
fn resolve(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let Ok(real) = existing.canonicalize() {
            // `strip_prefix` of an ancestor does not fail.
            return path.strip_prefix(existing).map_or(real.clone(), |rest| real.join(rest));
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_overlaps_with_every_address_of_its_family() {
        let overlap = |one: &str, other: &str| {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(overlap(one, other), overlap(other, one));
            overlap(one, other)
        };
        for (one, other) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::]:80", "127.0.0.1:80"),
            ("[::]:80", "0.0.0.0:80"),
            ("[::]:80", "[::1]:80"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
        ] {
            assert!(overlap(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:80", "127.0.0.1:81"),
            ("127.0.0.1:80", "127.0.0.2:80"),
            ("0.0.0.0:80", "[::1]:80"),
            ("0.0.0.0:0", "0.0.0.0:0"),
        ] {
            assert!(!overlap(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_template_is_normalized_and_keeps_its_placeholders() {
        let here = std::env::current_dir().unwrap();
        for (path, normal) in [
            ("/a//./b", "/a/b".to_owned()),
            ("./x", here.join("x").display().to_string()),
            ("/a/%F/%%F", "/a/%Y-%m-%d/%%F".to_owned()),
            ("/a/../b", "/b".to_owned()),
        ] {
            assert_eq!(normalize(path), normal);
        }
    }
}
