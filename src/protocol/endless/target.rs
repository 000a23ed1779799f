//! The head of an upload: protocol version, hash, and content encoding (rules 1 and 2).

use tributary_protocol::RequestHead;

use super::wire::UploadVersion;

/// The path of an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) version: UploadVersion,
    /// The expected SHA-512 of the bundle; `None`: the path has no valid hash.
    pub(super) hash: Option<[u8; 64]>,
}

impl Target {
    /// Reads `<prefix>/<version>/<hash>`.
    ///
    /// # Errors
    /// The path is not an upload's; the text says why.
    pub(super) fn read(path: &str, prefix: &str) -> Result<Target, String> {
        let rest = path.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
        let (version, hash) = rest.and_then(|rest| rest.split_once('/')).ok_or_else(|| form(path, prefix))?;
        let version = UploadVersion::by_name(version);
        if version.is_none() && upload_prefix(path).is_some() {
            return Err(form(path, prefix));
        }
        let version = version.ok_or("the protocol versions are 0, 1, 2 and 3")?;
        Ok(Target { version, hash: hash_from_hex(hash) })
    }
}

/// The form of an upload's path, and the option for `path` if that has another prefix.
fn form(path: &str, prefix: &str) -> String {
    let form = format!("uploads go to PUT {prefix}/<version>/<SHA-512 of the bundle>");
    match upload_prefix(path) {
        Some(found) if found != prefix => format!(
            "{form}; for this path configure path_prefix = \"{found}\" in the listener, or decode with \
             -o path_prefix={found}"
        ),
        _ => form,
    }
}

/// What stands before `/<version>/<hash>`, if that can be written as an option without quotes.
fn upload_prefix(path: &str) -> Option<&str> {
    let (rest, hash) = path.rsplit_once('/')?;
    let (prefix, version) = rest.rsplit_once('/')?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let is_upload = hash_from_hex(hash).is_some() && UploadVersion::by_name(version).is_some();
    (is_upload && prefix.bytes().all(is_plain) && prefix.len() <= MAX_SHOWN_PREFIX).then_some(prefix)
}

/// A longer prefix is not shown in a message, in bytes.
const MAX_SHOWN_PREFIX: usize = 256;

/// 128 hexadecimal digits in upper or lower case (rule 1).
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

/// The content encoding of the body (rule 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    Plain,
    Gzip,
    Unknown,
}

impl Encoding {
    /// Agents name it in a header of their own; versions of a few weeks used the standard one.
    pub(super) fn read(head: &RequestHead) -> Encoding {
        let named = ["x-endless-content-encoding", "content-encoding"].map(|name| {
            let is_present = head.headers.iter().any(|(known, _)| known == name);
            is_present.then(|| head.header(name).unwrap_or("?"))
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
    fn a_target_is_a_version_and_a_hash_after_the_prefix() {
        let hash = "0aF".repeat(43)[..128].to_owned();
        let target = Target::read(&format!("/a/b/2/{hash}"), "/a/b").unwrap();
        assert_eq!(target.version, UploadVersion::V2);
        assert_eq!(target.hash.unwrap()[..3], [0x0A, 0xF0, 0xAF]);
        assert_eq!(Target::read("/0/", "").unwrap(), Target { version: UploadVersion::V0, hash: None });
        assert_eq!(Target::read(&format!("/3/{hash}/"), "").unwrap().hash, None);
        assert_eq!(Target::read(&format!("/3/{}g", &hash[1..]), "").unwrap().hash, None);
        for path in ["/4/x", "/a/2/x", "/3", "/", "", "3/x"] {
            assert!(Target::read(path, "").is_err(), "{path}");
        }
    }

    #[test]
    fn the_agents_own_header_wins_over_the_standard_one() {
        let read = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
            Encoding::read(&RequestHead { method: "PUT".into(), target: "/".into(), headers })
        };
        assert_eq!(read(&[]), Encoding::Plain);
        assert_eq!(read(&[("content-encoding", "GZIP")]), Encoding::Gzip);
        assert_eq!(read(&[("content-encoding", "br"), ("x-endless-content-encoding", "gzip")]), Encoding::Gzip);
        assert_eq!(read(&[("x-endless-content-encoding", "bzip2")]), Encoding::Unknown);
        assert_eq!(read(&[("x-endless-content-encoding", "\u{0}")]), Encoding::Unknown);
    }
}
