//! What two parts of a configuration cannot both have: a name, a TCP address, an output file.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};

use super::ListenerConfig;
use tributary_event::Kind;
use tributary_options::Section;

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
pub(super) struct Addresses {
    claims: Vec<(SocketAddr, String)>,
    /// The first claim of each address, in its canonical form.
    first: HashMap<SocketAddr, usize>,
    /// The first claim of each port, of any address and of one of IPv4.
    first_of_port: HashMap<u16, usize>,
    first_of_port_v4: HashMap<u16, usize>,
}

impl Addresses {
    /// Adds an address that `owner` binds. Returns the owner and the address that cannot be bound beside it. Port 0 is
    /// never in conflict: the system chooses a free port.
    pub(super) fn claim(&mut self, address: SocketAddr, owner: String) -> Option<(&str, SocketAddr)> {
        let (ip, port, index) = (address.ip().to_canonical(), address.port(), self.claims.len());
        if port == 0 {
            return None;
        }
        let other = self.conflict(ip, port);
        self.claims.push((address, owner));
        self.first.entry(SocketAddr::new(ip, port)).or_insert(index);
        self.first_of_port.entry(port).or_insert(index);
        if ip.is_ipv4() {
            self.first_of_port_v4.entry(port).or_insert(index);
        }
        other.map(|index| (self.claims[index].1.as_str(), self.claims[index].0))
    }

    /// The first claim of an address on which no socket can listen at the same time. `0.0.0.0` is every IPv4 address, and
    /// `[::]` is every address: a socket on it takes IPv4 connections as well.
    fn conflict(&self, ip: IpAddr, port: u16) -> Option<usize> {
        let claimed = |ip: IpAddr| self.first.get(&SocketAddr::new(ip, port));
        let same = claimed(ip);
        let around = claimed(Ipv6Addr::UNSPECIFIED.into());
        let around_v4 = claimed(Ipv4Addr::UNSPECIFIED.into()).filter(|_| ip.is_ipv4());
        let inside = match ip {
            IpAddr::V6(ip) if ip.is_unspecified() => self.first_of_port.get(&port),
            IpAddr::V4(ip) if ip.is_unspecified() => self.first_of_port_v4.get(&port),
            _ => None,
        };
        [same, around, around_v4, inside].into_iter().flatten().min().copied()
    }
}

/// The files that sinks write, each set with the name of its sink.
#[derive(Default)]
pub(super) struct OutputFiles {
    sinks: Vec<String>,
    /// The first sink of each template, as [`normalize`] writes it.
    templates: HashMap<String, usize>,
    /// The first sink of each template with a protocol, listener and kind that the sink can get; dates stay as they are.
    expansions: HashMap<PathBuf, usize>,
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
        let of_listeners: BTreeSet<String> = listeners
            .map(|listener| (listener.protocol.protocol(), listener.name.as_str()))
            .map(|(protocol, name)| template.replace("{protocol}", protocol.as_str()).replace("{listener}", name))
            .collect();
        let of_kinds = |path: String| match path.contains("{kind}") {
            true => Kind::ALL.map(|kind| path.replace("{kind}", kind.as_str())).to_vec(),
            false => vec![path],
        };
        let expansions = of_listeners.into_iter().flat_map(of_kinds).map(|expansion| resolve(Path::new(&expansion)));
        let expansions: BTreeSet<PathBuf> = expansions.collect();
        let shared = expansions.iter().filter_map(|file| Some((*self.expansions.get(file)?, Some(file))));
        let same = self.templates.get(&template).map(|sink| (*sink, None));
        let other = shared.chain(same).min_by_key(|(sink, _)| *sink);
        let other = other.map(|(sink, file)| (sink, file.map_or(template.clone(), |file| file.display().to_string())));
        let index = self.sinks.len();
        self.sinks.push(sink.to_owned());
        self.templates.entry(template).or_insert(index);
        for file in expansions {
            self.expansions.entry(file).or_insert(index);
        }
        other.map(|(sink, shared)| (self.sinks[sink].as_str(), shared))
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
            let is_conflict = |one: &str, other: &str| {
                let mut addresses = Addresses::default();
                assert_eq!(addresses.claim(one.parse().unwrap(), "one".to_owned()), None);
                let conflict = addresses.claim(other.parse().unwrap(), "other".to_owned());
                conflict
                    .inspect(|(owner, address)| assert_eq!((*owner, *address), ("one", one.parse().unwrap())))
                    .is_some()
            };
            assert_eq!(is_conflict(one, other), is_conflict(other, one));
            is_conflict(one, other)
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

    /// With a comparison of each address with each other this test would not end.
    #[test]
    fn many_addresses_and_files_are_claimed_without_comparing_each_with_each() {
        let mut addresses = Addresses::default();
        let mut files = OutputFiles::default();
        for number in 0..200_000_u32 {
            let address = SocketAddr::from((Ipv4Addr::from(0x7f00_0000 + number), 80));
            assert_eq!(addresses.claim(address, format!("listener `{number}`")), None);
        }
        let again = SocketAddr::from((Ipv4Addr::from(0x7f00_0000 + 7), 80));
        assert_eq!(addresses.claim(again, "another".to_owned()), Some(("listener `7`", again)));
        for number in 0..20_000 {
            assert_eq!(files.claim(&format!("s{number}"), &format!("/none/{number}"), std::iter::empty()), None);
        }
        assert_eq!(files.claim("s", "/none/7", std::iter::empty()), Some(("s7", "/none/7".to_owned())));
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
