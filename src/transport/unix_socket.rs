//! Unix sockets: how a path is bound.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use tributary_system::directories::directory_of;

use super::tcp::BACKLOG;

/// A socket at this path with these permissions. One that a dead process has left there is replaced.
///
/// # Errors
/// A living process has the socket, something else is at the path, or its directory is missing; or those of the system.
pub fn bind(path: &Path, kind: Type, mode: u32) -> io::Result<Socket> {
    let directory = directory_of(path);
    if !directory.is_dir() {
        let why = format!("the directory {} does not exist", directory.display());
        return Err(io::Error::new(ErrorKind::NotFound, why));
    }
    let address = SockAddr::unix(path)?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "something that is no socket is there"));
        }
        Ok(_) => match Socket::new(Domain::UNIX, kind, None)?.connect(&address) {
            Ok(()) => {
                return Err(io::Error::new(ErrorKind::AddrInUse, "a living process has this socket"));
            }
            // No process has it open.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            Err(error) if error.raw_os_error() == Some(WRONG_TYPE) => {
                return Err(io::Error::new(
                    ErrorKind::AddrInUse,
                    "a living process has a socket of another type there",
                ));
            }
            Err(error) => return Err(error),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = Socket::new(Domain::UNIX, kind, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    if kind == Type::STREAM {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

/// `EPROTOTYPE` of Linux.
const WRONG_TYPE: i32 = 91;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_left_is_replaced_and_every_other_obstacle_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("apm.socket");
        for kind in [Type::STREAM, Type::DGRAM] {
            let socket = bind(&path, kind, 0o722).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o722);
            let error = bind(&path, kind, 0o722).unwrap_err();
            assert_eq!((error.kind(), error.to_string().contains("living")), (ErrorKind::AddrInUse, true), "{error}");
            drop(socket);
        }
        let _replaced = bind(&path, Type::STREAM, 0o600).unwrap();
        let missing = bind(&dir.path().join("none/apm.socket"), Type::STREAM, 0o722).unwrap_err();
        assert!(missing.to_string().contains("does not exist"), "{missing}");
        fs::write(dir.path().join("file"), b"").unwrap();
        let other = bind(&dir.path().join("file"), Type::STREAM, 0o722).unwrap_err();
        assert!(other.to_string().contains("no socket"), "{other}");
    }
}
