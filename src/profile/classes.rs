//! The methods of Java class files: of single files, of jars, and of the files of both kinds in a directory.
//!
//! A method counts if it has code, as agents trace it: also `<clinit>`, and what the compiler has added. Entries are read as they
//! come, within limits; a file that cannot be read is an error, because then not all methods are known.

mod class_file;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, FileReader, ZipArchive, ZipFileHeaderRecord};

use super::words;

/// The maximum size of a class file.
const MAX_CLASS_BYTES: u64 = 16 << 20;
/// The maximum number of files in the given directories and jars.
const MAX_FILES: u64 = 1 << 20;
/// The maximum size of all class files.
const MAX_BYTES: u64 = 4 << 30;
/// The maximum size of the names and lines of all methods, and what a method counts beside them.
const MAX_NAME_BYTES: usize = 256 << 20;
const METHOD_BYTES: usize = 64;
/// Where a jar has classes for other versions of Java. Agents trace one of them, with mostly the same methods.
const OTHER_VERSIONS: &str = "META-INF/versions/";

/// A method with code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassMethod<'a> {
    /// The class, with dots.
    pub class: Cow<'a, str>,
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its descriptor.
    pub descriptor: Cow<'a, str>,
    /// Its lines in the source file of the class.
    pub lines: BTreeSet<u16>,
}

/// What was read, and what was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassFileCounts {
    /// Class files.
    pub classes: u64,
    /// Class files for other versions of Java.
    pub other_versions: u64,
    /// Jars within jars.
    pub nested_jars: u64,
    /// Symbolic links to directories.
    pub links: u64,
}

/// Reads class files. The limits are those of all files together.
#[derive(Debug, Default)]
pub struct Reader {
    found: ClassFileCounts,
    files: u64,
    bytes: u64,
    name_bytes: usize,
}

/// Takes a method.
type Take<'a> = dyn FnMut(ClassMethod<'_>) -> io::Result<()> + 'a;

impl Reader {
    /// Reads a class file, a jar, or all of these below a directory.
    ///
    /// # Errors
    /// A file cannot be read, is damaged or over a limit, or there is no class file. The error has its name.
    pub fn read(&mut self, path: &Path, take: &mut Take<'_>) -> io::Result<()> {
        let before = self.found.classes;
        let at = |error| located(&path.display().to_string(), error);
        match fs::metadata(path).map_err(at)?.is_dir() {
            true => self.directory(path, take)?,
            false => self.file(path, take).map_err(at)?,
        }
        match self.found.classes > before {
            true => Ok(()),
            false => Err(at(invalid("it has no class file"))),
        }
    }

    /// What was read, and what was left out.
    pub fn found(&self) -> ClassFileCounts {
        self.found
    }

    fn directory(&mut self, path: &Path, take: &mut Take<'_>) -> io::Result<()> {
        let mut directories = vec![path.to_owned()];
        while let Some(directory) = directories.pop() {
            let at = |error| located(&directory.display().to_string(), error);
            for entry in fs::read_dir(&directory).map_err(at)? {
                let entry = entry.map_err(at)?;
                let (path, kind) = (entry.path(), entry.file_type().map_err(at)?);
                let at = |error| located(&path.display().to_string(), error);
                self.count_file().map_err(at)?;
                if kind.is_dir() {
                    directories.push(path);
                } else if kind.is_symlink() && fs::metadata(&path).is_ok_and(|target| target.is_dir()) {
                    self.found.links += 1;
                } else if path.to_string_lossy().replace('\\', "/").contains(OTHER_VERSIONS) {
                    self.found.other_versions += 1;
                } else if is_class(&path.to_string_lossy()) || is_jar(&path.to_string_lossy()) {
                    self.file(&path, take).map_err(at)?;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, take: &mut Take<'_>) -> io::Result<()> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(invalid("it is neither a file nor a directory"));
        }
        let mut start = Vec::new();
        (&mut file).take(4).read_to_end(&mut start)?;
        match *start {
            [0xCA, 0xFE, 0xBA, 0xBE] => self.class(start, file, take),
            _ => self.jar(file, take),
        }
    }

    fn jar(&mut self, file: File, take: &mut Take<'_>) -> io::Result<()> {
        let mut buffer = vec![0; rawzip::MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let damaged = |error| invalid(format!("it is no jar that can be read: {error}"));
        let archive = ZipArchive::from_file(file, &mut buffer).map_err(damaged)?;
        let mut entries = archive.entries(&mut buffer);
        let mut read = 0u64;
        while let Some(entry) = entries.next_entry().map_err(damaged)? {
            read += 1;
            let path = String::from_utf8_lossy(entry.file_path().as_bytes()).into_owned();
            let at = |error| located(&words::one_line(&path), error);
            self.count_file().map_err(at)?;
            if is_jar(&path) {
                self.found.nested_jars += 1;
            } else if is_class(&path) && path.starts_with(OTHER_VERSIONS) {
                self.found.other_versions += 1;
            } else if is_class(&path) {
                let content = content(&archive, &entry).map_err(at)?;
                self.class(Vec::new(), content, take).map_err(at)?;
            }
        }
        // Older jars have the number in 16 bits.
        let declared = archive.entries_hint();
        match read % 0x1_0000 == declared % 0x1_0000 {
            true => Ok(()),
            false => Err(invalid(format!("it has {read} entries, and {declared} are declared"))),
        }
    }

    /// Reads a class file that continues after `bytes`.
    fn class(&mut self, mut bytes: Vec<u8>, rest: impl Read, take: &mut Take<'_>) -> io::Result<()> {
        rest.take(MAX_CLASS_BYTES + 1).read_to_end(&mut bytes)?;
        self.bytes += bytes.len() as u64;
        if bytes.len() as u64 > MAX_CLASS_BYTES {
            return Err(invalid(format!("the class file has more than {MAX_CLASS_BYTES} bytes")));
        }
        if self.bytes > MAX_BYTES {
            return Err(invalid(format!("the class files have more than {MAX_BYTES} bytes together")));
        }
        self.found.classes += 1;
        self.methods(&bytes, take)
    }

    fn count_file(&mut self) -> io::Result<()> {
        self.files += 1;
        match self.files > MAX_FILES {
            true => Err(invalid(format!("there are more than {MAX_FILES} files"))),
            false => Ok(()),
        }
    }
}

/// The content of an entry of a jar, whose size and checksum are verified.
fn content<'a>(archive: &'a ZipArchive<FileReader>, entry: &ZipFileHeaderRecord<'_>) -> io::Result<Box<dyn Read + 'a>> {
    if entry.flags().is_encrypted() {
        return Err(invalid("it is encrypted"));
    }
    let method = entry.compression_method();
    let entry = archive.get_entry(entry.wayfinder()).map_err(invalid)?;
    match method {
        CompressionMethod::STORE => Ok(Box::new(entry.verifying_reader(entry.reader()))),
        CompressionMethod::DEFLATE => Ok(Box::new(entry.verifying_reader(DeflateDecoder::new(entry.reader())))),
        other => Err(invalid(format!("compression method {} is not supported", other.as_u16()))),
    }
}

fn is_class(path: &str) -> bool {
    path.ends_with(".class")
}

fn is_jar(path: &str) -> bool {
    path.ends_with(".jar") || path.ends_with(".war")
}

/// An error of damaged or unsupported content.
pub(super) fn invalid(error: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// The error with the file or entry that it is in.
fn located(place: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{place}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/java/shapes.jar")).unwrap()
    }

    /// The methods with their first lines, or the error.
    fn read(bytes: &[u8]) -> Result<(Vec<String>, ClassFileCounts), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.jar");
        fs::write(&path, bytes).unwrap();
        let (mut reader, mut methods) = (Reader::default(), Vec::new());
        let read = reader.read(&path, &mut |ClassMethod { class, name, descriptor, lines }| {
            methods.push(format!("{class}.{name}{descriptor} {}", lines.first().copied().unwrap_or(0)));
            Ok(())
        });
        methods.sort();
        match read {
            Ok(()) => Ok((methods, reader.found())),
            Err(error) => Err(error.to_string().replace(&folder.path().display().to_string(), "")),
        }
    }

    /// A jar of entries: name and content.
    fn jar(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut archive = rawzip::ZipArchiveWriter::new(&mut bytes);
        for (name, content) in entries {
            let file = archive.new_file(name).compression_method(CompressionMethod::DEFLATE);
            let (mut entry, config) = file.start().unwrap();
            let encoder = flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::default());
            let mut writer = config.wrap(encoder);
            io::Write::write_all(&mut writer, content).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            entry.finish(descriptor).unwrap();
        }
        archive.finish().unwrap();
        bytes
    }

    #[test]
    fn methods_with_code_of_a_compiled_jar_are_found() {
        let (methods, found) = read(&shapes()).unwrap();
        let expected = [
            "demo.Shapes$Named.grüße()Ljava/lang/String; 31",
            "demo.Shapes.<clinit>()V 7",
            "demo.Shapes.<init>()V 6",
            "demo.Shapes.compare(Ljava/lang/Object;Ljava/lang/Object;)I 6",
            "demo.Shapes.compare(Ljava/lang/String;Ljava/lang/String;)I 24",
            "demo.Shapes.lambda$scale$0()I 18",
            "demo.Shapes.scale(I)I 14",
            "demo.Shapes.scale(J)I 18",
        ];
        assert_eq!(methods, expected);
        assert_eq!(found, ClassFileCounts { classes: 2, ..ClassFileCounts::default() });
    }

    #[test]
    fn other_versions_and_jars_within_a_jar_are_counted_and_not_read() {
        let shapes = shapes();
        let entries: &[(&str, &[u8])] = &[
            ("BOOT-INF/lib/other.jar", &shapes),
            ("META-INF/versions/17/demo/Shapes.class", b"none"),
            ("BOOT-INF/classes/Empty.class", EMPTY),
            ("application.properties", b"x"),
        ];
        let found = ClassFileCounts { classes: 1, other_versions: 1, nested_jars: 1, links: 0 };
        assert_eq!(read(&jar(entries)), Ok((Vec::new(), found)));
        let none = read(&jar(&entries[..2])).unwrap_err();
        assert_eq!(none, "/app.jar: it has no class file");
    }

    #[test]
    fn a_directory_is_read_to_its_ends_and_links_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in
            [("a/b/Empty.class", EMPTY), ("META-INF/versions/17/Empty.class", b"none"), ("x.txt", b"x")]
        {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/loop")).unwrap();
        let mut reader = Reader::default();
        reader.read(folder.path(), &mut |_| Ok(())).unwrap();
        assert_eq!(reader.found(), ClassFileCounts { classes: 1, other_versions: 1, nested_jars: 0, links: 1 });
    }

    /// The class `Empty` without methods.
    const EMPTY: &[u8] = b"\xCA\xFE\xBA\xBE\0\0\0\x34\0\x03\x01\0\x05Empty\x07\0\x01\0\x21\0\x02\0\0\0\0\0\0\0\0\0\0";

    #[test]
    fn damaged_files_are_errors_with_their_places() {
        let class = |content: &[u8]| read(&jar(&[("a/B.class", content)])).unwrap_err();
        assert_eq!(class(&EMPTY[..30]), "/app.jar: a/B.class: unexpected end of input at 29 in fields");
        assert_eq!(
            class(b"\xCA\xFE\xBA\xBE\0\0\0\x34\xFF\xFF"),
            "/app.jar: a/B.class: 65535 constants are declared in 10 bytes"
        );
        assert!(class(b"").contains("a/B.class: "), "{}", class(b""));
        assert!(class(&vec![0; MAX_CLASS_BYTES as usize + 1]).ends_with("the class file has more than 16777216 bytes"));
        assert_eq!(read(EMPTY).unwrap().1.classes, 1, "a class file");
        assert!(read(b"text").unwrap_err().starts_with("/app.jar: it is no jar that can be read: "));
        // The central directory declares more entries than it has.
        let mut more = jar(&[("B.class", EMPTY)]);
        let end = more.len() - 22;
        more[end + 8..end + 12].copy_from_slice(&[9, 0, 9, 0]);
        assert_eq!(read(&more).unwrap_err(), "/app.jar: it has 1 entries, and 9 are declared");
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, bytes).unwrap();
        file
    }

    #[test]
    fn no_cut_and_no_changed_byte_panics() {
        let shapes = shapes();
        for at in 0..shapes.len() {
            let mut changed = shapes.clone();
            changed[at] ^= 0xFF;
            let _ = Reader::default().jar(file(&changed), &mut |_| Ok(()));
            assert!(Reader::default().jar(file(&shapes[..at]), &mut |_| Ok(())).is_err(), "cut at {at}");
        }
        let mut buffer = vec![0; 1 << 16];
        let archive = ZipArchive::from_file(file(&shapes), &mut buffer).unwrap();
        let mut entries = archive.entries(&mut buffer);
        let mut class = Vec::new();
        while let Some(entry) = entries.next_entry().unwrap() {
            if entry.file_path().as_bytes() == b"demo/Shapes.class" {
                content(&archive, &entry).unwrap().read_to_end(&mut class).unwrap();
            }
        }
        assert!(class.starts_with(&[0xCA, 0xFE, 0xBA, 0xBE]));
        for at in 0..class.len() {
            for bits in [0x01, 0x80, 0xFF] {
                let mut changed = class.clone();
                changed[at] ^= bits;
                let _ = Reader::default().methods(&changed, &mut |_| Ok(()));
            }
            assert!(Reader::default().methods(&class[..at], &mut |_| Ok(())).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn many_long_names_in_a_small_file_are_an_error() {
        // A constant of 60,000 bytes is the name of 10,000 methods.
        let long = "x".repeat(60_000);
        let text = |text: &str| [&[1], &(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
        let mut bytes = b"\xCA\xFE\xBA\xBE\0\0\0\x34\0\x05".to_vec();
        bytes.extend([text("Long"), vec![7, 0, 1], text(&long), text("Code")].concat());
        bytes.extend([0, 0x21, 0, 2, 0, 0, 0, 0, 0, 0]);
        bytes.extend(10_000u16.to_be_bytes());
        let code = [0, 1, 0, 3, 0, 3, 0, 1, 0, 4, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(code.repeat(10_000));
        bytes.extend([0, 0]);
        let mut taken = 0;
        let read = Reader::default().methods(&bytes, &mut |_| {
            taken += 1;
            Ok(())
        });
        assert_eq!(read.unwrap_err().to_string(), "names and lines of methods have more than 268435456 bytes");
        assert!(taken < 3_000, "{taken}");
    }
}
