//! Compression of finished files, on another thread than the writing.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::sync_directory;
use super::names;
use super::options::{Compression, Fsync};
use tributary_memory::log_throttle::LogThrottle;
use tributary_system::directories::directory_of;

const BLOCK_BYTES: usize = 256 * 1024;
/// Reports that a file cannot be compressed.
static TROUBLE: LogThrottle = LogThrottle::new();

/// Compresses one file after the other until `stop` is set. A file that cannot be compressed stays as it is, with a
/// warning; it is tried again when the next file is finished, or after the next start.
pub(super) fn all(paths: &[PathBuf], compression: Compression, fsync: Fsync, stop: &AtomicBool) {
    for path in paths {
        if let Err(error) = one(path, compression, fsync, stop) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if let Some(suppressed) = TROUBLE.permit() {
                tracing::warn!(path = %path.display(), %error, suppressed, "cannot compress a finished file");
            }
        }
    }
}

/// Replaces a file by its compressed form. At any time one of the two exists and is complete: the compressed one gets
/// its name only when it is complete, and the original is removed only after that.
fn one(path: &Path, compression: Compression, fsync: Fsync, stop: &AtomicBool) -> io::Result<()> {
    let whole = names::compressed(path, compression);
    let temporary = names::append(&whole, names::TEMPORARY);
    let original = fs::File::open(path)?;
    let output = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let result = copy(&original, &output, compression, stop)
        .and_then(|()| output.set_permissions(original.metadata()?.permissions()))
        .and_then(|()| if fsync == Fsync::Never { Ok(()) } else { output.sync_all() })
        .and_then(|()| fs::rename(&temporary, &whole));
    if let Err(error) = result {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    if fsync != Fsync::Never {
        sync_directory(directory_of(&whole))?;
    }
    fs::remove_file(path)
}

fn copy(from: &fs::File, to: &fs::File, compression: Compression, stop: &AtomicBool) -> io::Result<()> {
    let to = io::BufWriter::with_capacity(BLOCK_BYTES, to);
    let mut to = match compression {
        Compression::None => to,
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(to, flate2::Compression::default());
            copy_blocks(from, &mut encoder, stop)?;
            encoder.finish()?
        }
        Compression::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(to);
            copy_blocks(from, &mut encoder, stop)?;
            encoder.finish()?
        }
        Compression::Zstd => {
            let mut encoder = zstd::Encoder::new(to, zstd::DEFAULT_COMPRESSION_LEVEL)?;
            copy_blocks(from, &mut encoder, stop)?;
            encoder.finish()?
        }
    };
    to.flush()
}

fn copy_blocks(mut from: &fs::File, to: &mut impl Write, stop: &AtomicBool) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the sink is gone"));
        }
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&block[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_that_is_stopped_leaves_only_the_original() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        fs::write(&path, "something\n").unwrap();
        all(std::slice::from_ref(&path), Compression::Gzip, Fsync::Never, &AtomicBool::new(true));
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, std::slice::from_ref(&path));
        assert_eq!(fs::read(path).unwrap(), b"something\n");
    }
}
