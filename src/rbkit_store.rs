//! The store of the `rbkit` protocol: what the daemon has switched on in which process, in a file that survives a kill.
//!
//! Each listener has one file of JSON, which is replaced as a whole: a temporary file is written and synced, renamed, and the
//! directory is synced. A reader sees the old or the new file, never a part.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tracing::warn;

use tributary_memory::log_throttle::LogThrottle;
use tributary_rbkit::{PendingUndo, ProcessId, RbkitCommand, UndoStore};
use tributary_system::blocking;
use tributary_system::directories;
use tributary_system::locked_file::LockedFile;

/// The most processes that a file has; of more, the earliest are dropped.
const MAX_PROCESSES: usize = 1_000;
/// A longer file is damaged: a process takes 4 KiB at most.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// The version of the format.
const VERSION: u32 = 1;

/// The stores of this process. A listener that a reload has changed uses the one of its predecessor.
static OPEN: Mutex<Vec<Weak<ProfileStore>>> = Mutex::new(Vec::new());

/// The store of one listener.
#[derive(Debug)]
pub struct ProfileStore {
    listener: String,
    path: PathBuf,
    contents: Mutex<Contents>,
    failures: LogThrottle,
    /// Locked as long as the store lives.
    _lock: LockedFile,
}

/// What the file has.
#[derive(Debug)]
struct Contents {
    processes: Vec<PendingUndo>,
    /// The file could not be written: it has older processes.
    is_outdated: bool,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    processes: Vec<ProcessEntry>,
}

/// A process in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcessEntry {
    request: String,
    pid: Option<u64>,
    process: Option<String>,
    directory: Option<String>,
    undo: Vec<String>,
}

/// The file of a listener.
pub fn path(state_dir: &Path, listener: &str) -> PathBuf {
    state_dir.join(format!("{listener}.profiles.json"))
}

impl ProfileStore {
    /// Opens the store of the listener with this name, or creates it. A damaged file is logged, and the store is empty then.
    ///
    /// # Errors
    /// The directory cannot be used, or another process uses the file.
    pub fn open(state_dir: &Path, listener: &str) -> io::Result<Arc<ProfileStore>> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", state_dir.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(state_dir).map_err(named)?;
        let path = path(&state_dir.canonicalize().map_err(named)?, listener);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|store| store.strong_count() > 0);
        if let Some(store) = open.iter().filter_map(Weak::upgrade).find(|store| store.path == path) {
            return Ok(store);
        }
        let lock = lock(&path).map_err(named)?;
        let processes = read(&path).unwrap_or_else(|error| {
            let file = path.display().to_string();
            warn!(
                listener,
                file,
                %error,
                "the file of switched-on profiles is damaged; starting without it: profiles of a killed daemon stay on"
            );
            Vec::new()
        });
        let store = ProfileStore {
            listener: listener.to_owned(),
            path,
            contents: Mutex::new(Contents { processes, is_outdated: false }),
            failures: LogThrottle::new(),
            _lock: lock,
        };
        let store = Arc::new(store);
        open.push(Arc::downgrade(&store));
        Ok(store)
    }

    /// What must be undone, of all processes.
    pub fn all(&self) -> Vec<PendingUndo> {
        self.contents().processes.clone()
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the file.
    fn write(&self, processes: &[PendingUndo]) -> io::Result<()> {
        let document = Document { version: VERSION, processes: processes.iter().map(ProcessEntry::of).collect() };
        let mut text = serde_json::to_vec(&document)?;
        text.push(b'\n');
        let temporary = self.path.with_extension("json.new");
        // A file that a kill has left may have another mode.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        written.and_then(|()| fs::rename(&temporary, &self.path)).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
        directories::sync_directory_of(&self.path)
    }
}

impl UndoStore for ProfileStore {
    fn pending(&self, request: &str) -> Option<PendingUndo> {
        self.contents().processes.iter().find(|known| known.request == request).cloned()
    }

    fn store(&self, pending: PendingUndo) {
        blocking::run(|| {
            let mut contents = self.contents();
            let Contents { processes, is_outdated } = &mut *contents;
            let known = processes.iter().find(|known| known.request == pending.request);
            let is_known = known.map_or(pending.commands.is_empty(), |known| *known == pending);
            if is_known && !*is_outdated {
                return;
            }
            processes.retain(|known| known.request != pending.request);
            if !pending.commands.is_empty() {
                processes.push(pending);
            }
            let excess = processes.len().saturating_sub(MAX_PROCESSES);
            processes.drain(..excess);
            let written = self.write(processes);
            *is_outdated = written.is_err();
            if let Err(error) = written
                && let Some(suppressed) = self.failures.permit()
            {
                let (listener, file) = (&self.listener, self.path.display().to_string());
                warn!(
                    listener,
                    file,
                    %error,
                    suppressed,
                    "cannot store which profiles are switched on; after a kill of the daemon they stay on"
                );
            }
        });
    }
}

impl ProcessEntry {
    fn of(pending: &PendingUndo) -> ProcessEntry {
        let PendingUndo { request, process, commands } = pending.clone();
        let ProcessId { pid, process, directory } = process;
        let undo = commands.iter().map(|command| command.as_str().to_owned()).collect();
        ProcessEntry { request, pid, process, directory, undo }
    }

    /// None: one of its commands does not undo anything.
    fn pending(self) -> Option<PendingUndo> {
        let ProcessEntry { request, pid, process, directory, undo } = self;
        let command = |name: &String| RbkitCommand::ALL.into_iter().find(|one| one.is_undo() && one.as_str() == name);
        let commands = undo.iter().map(command).collect::<Option<Vec<_>>>()?;
        Some(PendingUndo { request, process: ProcessId { pid, process, directory }, commands })
    }
}

/// Locks the file against other processes, as long as the result lives.
fn lock(path: &Path) -> io::Result<LockedFile> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path.with_extension("lock"))?;
    LockedFile::lock(file).map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another tributary process uses it; give each its own state_dir"),
        TryLockError::Error(error) => error,
    })
}

fn read(path: &Path) -> io::Result<Vec<PendingUndo>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("it is too long"));
    }
    let document: Document = serde_json::from_slice(&text)?;
    if document.version != VERSION {
        return Err(io::Error::other(format!("it has version {}, expected {VERSION}", document.version)));
    }
    let processes: Option<Vec<_>> = document.processes.into_iter().map(ProcessEntry::pending).collect();
    let mut processes = processes.ok_or_else(|| io::Error::other("it has a command that undoes nothing"))?;
    let excess = processes.len().saturating_sub(MAX_PROCESSES);
    processes.drain(..excess);
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn pending(request: &str, commands: &[RbkitCommand]) -> PendingUndo {
        let process = ProcessId { pid: Some(1), process: Some("shop.rb".to_owned()), directory: None };
        PendingUndo { request: request.to_owned(), process, commands: commands.to_vec() }
    }

    const BOTH: [RbkitCommand; 2] = [RbkitCommand::UseCpuTime, RbkitCommand::StopCpuProfiling];

    #[test]
    fn what_was_stored_is_there_when_the_file_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let state_dir = directory.path().join("new");
        let (ruby, other) = ("ruby", "other");
        let store = ProfileStore::open(&state_dir, ruby).unwrap();
        let neighbour = ProfileStore::open(&state_dir, other).unwrap();
        store.store(pending("a:5556", &BOTH));
        store.store(pending("b:5556", &[RbkitCommand::StopMemoryProfile]));
        neighbour.store(pending("a:5556", &[RbkitCommand::StopMemoryProfile]));
        assert!(Arc::ptr_eq(&store, &ProfileStore::open(&state_dir, ruby).unwrap()));
        store.store(pending("b:5556", &[]));
        drop((store, neighbour));
        let store = ProfileStore::open(&state_dir, ruby).unwrap();
        assert_eq!(store.all(), [pending("a:5556", &BOTH)]);
        assert_eq!((store.pending("a:5556"), store.pending("b:5556")), (Some(pending("a:5556", &BOTH)), None));
        let file = fs::metadata(path(&state_dir, ruby)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
        let mut names: Vec<_> = fs::read_dir(&state_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let expected = ["other.profiles.json", "other.profiles.lock", "ruby.profiles.json", "ruby.profiles.lock"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_damaged_file_is_an_empty_store_and_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = path(directory.path(), "ruby");
        let long = vec![b' '; MAX_FILE_BYTES as usize + 1];
        let good = r#"{"version":1,"processes":[{"request":"a:1","pid":1,"process":null,"directory":null,"undo":["stop_memory_profile"]}]}"#;
        let wrong = |from: &str, to: &str| good.replace(from, to).into_bytes();
        for damaged in [
            Vec::new(),
            good.as_bytes()[..40].to_vec(),
            wrong(":1,\"processes", ":2,\"processes"),
            wrong("stop_memory_profile", "objectspace_snapshot"),
            wrong("\"pid\":1", "\"pid\":-1"),
            b"\xff\xfe".to_vec(),
            long,
        ] {
            fs::write(&file, damaged).unwrap();
            let store = ProfileStore::open(directory.path(), "ruby").unwrap();
            assert_eq!(store.all(), []);
            store.store(pending("b:1", &BOTH));
            drop(store);
            assert_eq!(ProfileStore::open(directory.path(), "ruby").unwrap().all(), [pending("b:1", &BOTH)]);
        }
        fs::write(&file, good).unwrap();
        assert_eq!(ProfileStore::open(directory.path(), "ruby").unwrap().all().len(), 1);
    }

    #[test]
    fn the_number_of_processes_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let many: Vec<_> =
            (0..MAX_PROCESSES + 5).map(|at| ProcessEntry::of(&pending(&format!("h{at}:1"), &BOTH))).collect();
        let document = Document { version: VERSION, processes: many };
        fs::write(path(directory.path(), "ruby"), serde_json::to_vec(&document).unwrap()).unwrap();
        let store = ProfileStore::open(directory.path(), "ruby").unwrap();
        store.store(pending("last:1", &BOTH));
        let all = store.all();
        assert_eq!(
            (all.len(), all[0].request.as_str(), all.last().unwrap().request.as_str()),
            (1_000, "h6:1", "last:1")
        );
    }
}
