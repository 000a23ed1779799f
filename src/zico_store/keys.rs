//! Keys and session ids: which registration keys are accepted, and what the file stores instead of them.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use ring::digest::{SHA256, digest};
use ring::error::Unspecified;
use ring::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{Choice, ConstantTimeEq};
use tracing::warn;

use super::error::StoreError;

/// SHA-256, and PBKDF2 on it.
pub(super) type Hash = [u8; 32];

/// About 3 ms of CPU time: little for one known key, much for guessing many.
const ROUNDS: NonZeroU32 = NonZeroU32::new(10_000).expect("is not 0");
/// The number of digests that are remembered. Agents use few registration keys.
const MAX_DIGESTS: usize = 1024;

/// The accepted registration keys, as hashes.
pub(super) struct AdmittedKeys {
    path: PathBuf,
    read: Mutex<Read>,
}

/// The content of the key file, and its version.
struct Read {
    hashes: Vec<Hash>,
    version: Option<(SystemTime, u64)>,
}

impl AdmittedKeys {
    /// Reads a file of keys, one per line. White space around keys, empty lines and lines that begin with `#` are ignored.
    pub(super) fn read(path: &Path) -> Result<Self, StoreError> {
        let read = Mutex::new(Read::of(path)?);
        Ok(AdmittedKeys { path: path.to_owned(), read })
    }

    /// Whether this key is accepted, in constant time. A changed file is read again; if that fails, its earlier keys stay
    /// valid.
    pub(super) fn admit(&self, rkey: &str) -> bool {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let version = version(&self.path);
        if version != read.version {
            match Read::of(&self.path) {
                Ok(now) => *read = now,
                Err(error) => {
                    warn!(%error, "cannot read the registration keys; the earlier ones stay valid");
                    read.version = version;
                }
            }
        }
        is_among(&hash(rkey), read.hashes.iter())
    }
}

impl Read {
    fn of(path: &Path) -> Result<Self, StoreError> {
        // Before the content: a change in between is found as another change.
        let version = version(path);
        let text = std::fs::read_to_string(path)
            .map_err(|error| StoreError::new(path, format!("cannot be read as keys_file: {error}")))?;
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let hashes: Vec<Hash> = keys.map(hash).collect();
        if hashes.is_empty() {
            return Err(StoreError::new(path, "holds no key, so no agent could register; write one key per line"));
        }
        Ok(Read { hashes, version })
    }
}

/// Modification time and length of a file.
fn version(path: &Path) -> Option<(SystemTime, u64)> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}

impl fmt::Debug for AdmittedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdmittedKeys({})", self.path.display())
    }
}

/// Digests of registration keys, which the file stores.
pub(super) struct RkeyDigests {
    salt: Vec<u8>,
    /// By the key's hash: digests are slow to compute.
    known: Mutex<HashMap<Hash, Hash>>,
}

impl RkeyDigests {
    pub(super) fn new(salt: Vec<u8>) -> Self {
        RkeyDigests { salt, known: Mutex::default() }
    }

    pub(super) fn salt(&self) -> &[u8] {
        &self.salt
    }

    pub(super) fn digest(&self, rkey: &str) -> Hash {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = hash(rkey);
        if let Some(digest) = known().get(&key) {
            return *digest;
        }
        let mut digest = Hash::default();
        pbkdf2::derive(PBKDF2_HMAC_SHA256, ROUNDS, &self.salt, rkey.as_bytes(), &mut digest);
        let mut known = known();
        if known.len() >= MAX_DIGESTS {
            known.clear();
        }
        known.insert(key, digest);
        digest
    }
}

impl fmt::Debug for RkeyDigests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RkeyDigests")
    }
}

/// The hash of an issued key or of a session id, which the file stores.
pub(super) fn hash(key: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
    hash
}

/// Whether `hash` is among `others`, in constant time.
pub(super) fn is_among<'a>(hash: &Hash, others: impl Iterator<Item = &'a Hash>) -> bool {
    others.fold(Choice::from(0), |found, other| found | hash.ct_eq(other)).into()
}

/// Whether two texts are equal, in a time that depends only on their length.
pub(super) fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Random bytes, suitable for keys.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(bytes)
}

/// A new key: 128 random bits, in hexadecimal digits.
pub(super) fn key() -> Result<String, Unspecified> {
    Ok(format!("{:032x}", u128::from_be_bytes(random()?)))
}

/// A random UUID (version 4).
pub(super) fn uuid() -> Result<String, Unspecified> {
    Ok(uuid_of(random()?))
}

/// A session's id: a UUID that only the holder of the agent's key and the reader of the file together can derive.
pub(super) fn session(authkey: &str, nonce: &[u8]) -> String {
    let parts = [b"tributary session\0", authkey.as_bytes(), b"\0", nonce].concat();
    let hash = digest(&SHA256, &parts);
    uuid_of(hash.as_ref().first_chunk().copied().unwrap_or_default())
}

/// The UUID of version 4 with these bits.
fn uuid_of(bits: [u8; 16]) -> String {
    let bits = u128::from_be_bytes(bits);
    let bits = bits & !(0xF << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    let digits = format!("{bits:032x}");
    let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
    format!("{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_may_have_comments_and_must_have_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, "# ours\n\n  first key \r\n#second\nthird#").unwrap();
        let keys = AdmittedKeys::read(&path).unwrap();
        assert!(keys.admit("first key") && keys.admit("third#"));
        assert!(!keys.admit("first") && !keys.admit("") && !keys.admit("#second") && !keys.admit("# ours"));
        std::fs::write(&path, "# none\n").unwrap();
        assert!(AdmittedKeys::read(&path).unwrap_err().to_string().contains("holds no key"));
        let missing = AdmittedKeys::read(&dir.path().join("other")).unwrap_err();
        assert!(missing.to_string().contains("other: cannot be read as keys_file"), "{missing}");
    }

    #[test]
    fn a_changed_key_file_is_read_again_and_a_missing_one_keeps_its_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, "first\n").unwrap();
        let keys = AdmittedKeys::read(&path).unwrap();
        assert!(keys.admit("first") && !keys.admit("second"));
        std::fs::write(&path, "second\nthird\n").unwrap();
        assert!(!keys.admit("first") && keys.admit("second") && keys.admit("third"));
        std::fs::remove_file(&path).unwrap();
        assert!(!keys.admit("first") && keys.admit("second"));
        std::fs::write(&path, "# none").unwrap();
        assert!(keys.admit("third"));
        std::fs::write(&path, "fourth").unwrap();
        assert!(keys.admit("fourth") && !keys.admit("third"));
    }

    #[test]
    fn digests_differ_by_key_and_by_salt_and_repeat() {
        let [one, two] = [b"salt one", b"salt two"].map(|salt| RkeyDigests::new(salt.to_vec()));
        assert_eq!(one.digest("key"), one.digest("key"));
        assert_ne!(one.digest("key"), one.digest("kez"));
        assert_ne!(one.digest("key"), two.digest("key"));
    }

    #[test]
    fn a_session_depends_on_the_key_and_on_the_nonce() {
        let id = session("key", b"nonce");
        assert_eq!(id, session("key", b"nonce"));
        assert_ne!(id, session("key", b"nonze"));
        assert_ne!(id, session("kez", b"nonce"));
        assert!(id.len() == 36 && id.as_bytes()[14] == b'4', "{id}");
    }

    #[test]
    fn uuids_are_of_version_4() {
        let uuid = uuid().unwrap();
        let parts: Vec<&str> = uuid.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{uuid}");
    }
}
