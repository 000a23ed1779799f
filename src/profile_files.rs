//! Files of profilers that a `datadog_agent` listener keeps as they came.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tracing::warn;

use tributary_datadog_agent::{KeepProfiles, KeepingFile, ProfileFiles};
use tributary_memory::log_throttle::LogThrottle;
use tributary_system::blocking::Job;
use tributary_system::directories;
use tributary_system::kept_files::KeptFiles;

/// The files of one listener.
#[derive(Debug)]
pub(crate) struct ProfileDirectory {
    shared: Arc<SharedDirectory>,
}

#[derive(Debug)]
struct SharedDirectory {
    listener: String,
    dir: PathBuf,
    options: KeepProfiles,
    /// `None`: the directory was not read yet.
    files: Mutex<Option<KeptFiles>>,
    full: LogThrottle,
    failed: LogThrottle,
}

impl ProfileDirectory {
    /// That of the listener of this name. `None`: it keeps none.
    pub(crate) fn new(options: &KeepProfiles, listener: &str) -> Option<ProfileDirectory> {
        let shared = SharedDirectory {
            listener: listener.to_owned(),
            dir: options.dir.join(listener),
            options: options.clone(),
            files: Mutex::default(),
            full: LogThrottle::new(),
            failed: LogThrottle::new(),
        };
        options.is_on().then(|| ProfileDirectory { shared: Arc::new(shared) })
    }
}

impl ProfileFiles for ProfileDirectory {
    fn keep(&self, name: String, content: Bytes) -> KeepingFile {
        let shared = self.shared.clone();
        Box::pin(async move {
            let of_job = shared.clone();
            let kept = match Job::start("profiles", move || of_job.keep(&name, &content)) {
                Ok(job) => job.await.and_then(|kept| kept),
                Err(error) => Err(error),
            };
            kept.map_err(|error| {
                if let Some(suppressed) = shared.failed.permit() {
                    let (listener, dir) = (&shared.listener, shared.dir.display());
                    warn!(listener, %dir, %error, suppressed, "cannot keep a file of a profiler (keep_profiles)");
                }
                error.to_string()
            })
        })
    }
}

impl SharedDirectory {
    fn keep(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let KeepProfiles { max_bytes, keep_time, .. } = self.options;
        let size = content.len() as u64;
        if size > max_bytes {
            return Err(io::Error::other(format!("a file of {size} bytes is larger than keep_profiles.max_bytes")));
        }
        // One at a time, so that the sums about the directory are exact.
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = match &mut *files {
            Some(files) => files,
            unread => unread.insert(KeptFiles::read(&self.dir, None)?),
        };
        if !keep_time.is_zero() {
            files.expire(keep_time)?;
        }
        let removed = files.free_space(size, max_bytes)?;
        if removed > 0
            && let Some(suppressed) = self.full.permit()
        {
            let (listener, dir) = (&self.listener, self.dir.display());
            warn!(listener, %dir, removed, suppressed, "keep_profiles.max_bytes is reached; the oldest files are removed");
        }
        let path = self.dir.join(name);
        directories::create(directories::directory_of(&path))?;
        files.add(path, &[content])
    }
}
