//! Keys: which registration keys are let in, and how keys stand in the file.

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

use super::StoreError;

/// SHA-256, and PBKDF2 on it.
pub(super) type Hash = [u8; 32];

/// About 3 ms of a processor: little for who knows the key, much for who tries them all.
const ROUNDS: NonZeroU32 = NonZeroU32::new(10_000).expect("is not 0");
/// So many digests are remembered. Agents use few registration keys.
const MOST_DIGESTS: usize = 1024;

/// The registration keys that are let in, as hashes.
pub(super) struct AdmittedKeys {
    path: PathBuf,
    read: Mutex<Read>,
}

/// What was read of a file, and of which version of it.
struct Read {
    hashes: Vec<Hash>,
    version: Option<(SystemTime, u64)>,
}

impl AdmittedKeys {
    /// Reads a file of keys: one per line, white space around it passed over, so are empty lines and those that begin
    /// with `#`.
    pub(super) fn read(path: &Path) -> Result<Self, StoreError> {
        let read = Mutex::new(Read::of(path)?);
        Ok(AdmittedKeys { path: path.to_owned(), read })
    }

    /// Whether this key is among them. Takes as long whether it is or not. When the file has changed, it is read again; if
    /// it cannot be, what was in it holds.
    pub(super) fn admit(&self, rkey: &str) -> bool {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let version = version(&self.path);
        if version != read.version {
            match Read::of(&self.path) {
                Ok(now) => *read = now,
                Err(error) => {
                    warn!("{error}; the keys that were in it before stay good");
                    read.version = version;
                }
            }
        }
        is_among(&hash(rkey), read.hashes.iter())
    }
}

impl Read {
    fn of(path: &Path) -> Result<Self, StoreError> {
        // Looked at first: what changes meanwhile is a further change.
        let version = version(path);
        let text = std::fs::read_to_string(path)
            .map_err(|error| StoreError::new(path, format!("cannot be read as keys_file: {error}")))?;
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let hashes: Vec<Hash> = keys.map(hash).collect();
        if hashes.is_empty() {
            return Err(StoreError::new(path, "holds no key, so nobody could register; one key per line"));
        }
        Ok(Read { hashes, version })
    }
}

/// When a file was changed, and how long it is.
fn version(path: &Path) -> Option<(SystemTime, u64)> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}

impl fmt::Debug for AdmittedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdmittedKeys({})", self.path.display())
    }
}

/// What stands in the file for a registration key.
pub(super) struct RkeyDigests {
    salt: Vec<u8>,
    /// By the key's hash: they are slow to make.
    known: Mutex<HashMap<Hash, Hash>>,
}

impl RkeyDigests {
    pub(super) fn new(salt: Vec<u8>) -> Self {
        RkeyDigests { salt, known: Mutex::default() }
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
        if known.len() >= MOST_DIGESTS {
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

/// What stands in the file for a key that we have issued.
pub(super) fn hash(key: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
    hash
}

/// Whether `hash` is among `others`. Which one, and how much of it, does not show in the time.
pub(super) fn is_among<'a>(hash: &Hash, others: impl Iterator<Item = &'a Hash>) -> bool {
    others.fold(Choice::from(0), |found, other| found | hash.ct_eq(other)).into()
}

/// Random bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(bytes)
}

/// A key: 128 random bits, in hexadecimal digits.
pub(super) fn key() -> Result<String, Unspecified> {
    Ok(format!("{:032x}", u128::from_be_bytes(random()?)))
}

/// A random uuid (version 4).
pub(super) fn uuid() -> Result<String, Unspecified> {
    let bits = u128::from_be_bytes(random()?);
    let bits = bits & !(0xF << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    let digits = format!("{bits:032x}");
    let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
    Ok(format!("{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_keys_may_have_comments_and_must_have_a_key() {
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
    fn a_file_of_keys_that_changes_is_read_again_and_one_that_is_gone_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, "first\n").unwrap();
        let keys = AdmittedKeys::read(&path).unwrap();
        assert!(keys.admit("first") && !keys.admit("second"));
        std::fs::write(&path, "second\nthird\n").unwrap();
        assert!(!keys.admit("first") && keys.admit("second") && keys.admit("third"));
        std::fs::remove_file(&path).unwrap();
        assert!(!keys.admit("first") && keys.admit("second"));
        std::fs::write(&path, "# nobody").unwrap();
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
    fn uuids_are_of_version_4() {
        let uuid = uuid().unwrap();
        let parts: Vec<&str> = uuid.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{uuid}");
    }
}
