//! What an operator should know about the directory of a spool.

use std::fmt;
use std::path::PathBuf;

/// Something about the directory of a spool that the operator should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpoolWarning {
    /// A file or directory that is not part of a spool. It is left alone.
    Foreign(PathBuf),
    /// A segment of this newer version. When the spool is opened it is moved to `aside/`.
    Newer(PathBuf, u8),
    /// The end of the last segment is no whole record: it was being written when the daemon or the machine stopped.
    Torn {
        /// The segment.
        path: PathBuf,
        /// Where the last whole record ends.
        offset: u64,
        /// The length of the rest.
        bytes: u64,
    },
    /// There are records and no cursor: everything is sent again.
    NoCursor,
    /// The cursor cannot be read. When the spool is opened it is moved to `aside/`. Everything is sent again.
    DamagedCursor(PathBuf),
    /// This many requests with this many events were removed by the operator since the last start.
    Dropped(u64, u64),
}

impl fmt::Display for SpoolWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpoolWarning::Foreign(path) => write!(f, "{} is not part of the spool; it is ignored", path.display()),
            SpoolWarning::Newer(path, version) => {
                let path = path.display();
                write!(f, "{path} has version {version}, of a newer tributary; a start moves it to aside/")
            }
            SpoolWarning::Torn { path, offset, bytes } => {
                let path = path.display();
                write!(f, "{path} ends with {bytes} bytes of an incomplete record at {offset}; they are ignored")
            }
            SpoolWarning::NoCursor => f.write_str("the file cursor is missing; all records are sent again"),
            SpoolWarning::DamagedCursor(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path} is damaged or of a newer tributary; a start moves it to aside/, and all records are sent again"
                )
            }
            SpoolWarning::Dropped(records, events) => write!(
                f,
                "{records} requests with {events} events were removed by `tributary spool drop`; they count as shed"
            ),
        }
    }
}
