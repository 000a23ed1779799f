//! The minimum work of any collector: receive bytes on loopback and write them to a file.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::process::thread_cpu_seconds;

/// The cost of a copy: the thread that reads and writes, without the sender.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    pub seconds: f64,
    pub cpu_seconds: f64,
}

/// Copies `bytes` bytes from a connection to a file.
pub fn copy(bytes: u64) -> Copied {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sender = thread::spawn(move || send(address, bytes));
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let before = thread_cpu_seconds();
    let (mut stream, _) = listener.accept().unwrap();
    let mut file = File::create(directory.path().join("raw")).unwrap();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            size => file.write_all(&buffer[..size]).unwrap(),
        }
    }
    let cpu_seconds = thread_cpu_seconds() - before;
    sender.join().unwrap().unwrap();
    Copied { seconds: began.elapsed().as_secs_f64(), cpu_seconds }
}

fn send(address: SocketAddr, bytes: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let piece = vec![b'x'; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let size = left.min(piece.len() as u64);
        stream.write_all(&piece[..size as usize])?;
        left -= size;
    }
    Ok(())
}
