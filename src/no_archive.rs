//! The sink `parquet` of a build without the feature `archive`: a configuration that names it is refused, and no file of it is read.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tributary_event::Batch;
use tributary_options::{Bounds, Section};
use tributary_sink::discard::Discard;
use tributary_sink_file as file;
use tributary_sink_forward::Proxy;

const MISSING: &str = "this build has no Parquet: it was made without the feature `archive`";

/// What is left of the options.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    pub path: String,
    pub keep_files: usize,
    pub keep_bytes: u64,
    pub keep_time: Duration,
    pub upload: Option<UploadOptions>,
}

/// There is none.
#[derive(Clone, Debug, PartialEq)]
pub struct UploadOptions {
    pub url: Infallible,
    pub delete_after: bool,
    pub proxy: Proxy,
}

impl Options {
    pub fn read(section: &mut Section<'_>) -> Options {
        section.error("type", MISSING, Some("install the program with all of its features".into()));
        section.accept_other_keys();
        Options::default()
    }

    pub fn files(&self) -> String {
        self.path.clone()
    }

    pub fn directory(&self) -> PathBuf {
        PathBuf::from(&self.path)
    }

    pub fn kept(&self) -> file::Options {
        file::Options { path: self.path.clone(), ..file::Options::default() }
    }

    pub fn conversions(&self) -> usize {
        0
    }

    pub fn declare(&self, _of: &str, _bounds: &mut Bounds) {}
}

impl UploadOptions {
    pub fn proxy(&self) -> Option<String> {
        match self.url {}
    }

    pub fn secret_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        std::iter::from_fn(|| match self.url {})
    }
}

/// The sink, which cannot be made.
#[derive(Debug)]
pub struct Parquet;

impl Parquet {
    pub fn new(_options: Options) -> Result<Parquet, String> {
        Err(MISSING.to_owned())
    }

    pub fn named(self, _name: &str) -> Discard {
        Discard
    }
}

pub fn probe(options: &UploadOptions, _time: Duration) -> Result<(), String> {
    match options.url {}
}

/// Reads no file.
pub fn read<R>(_input: R, _take: &mut dyn FnMut(Batch) -> io::Result<bool>) -> io::Result<()> {
    Err(io::Error::other(MISSING))
}
