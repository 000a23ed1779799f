//! Which spools a command is about.

use std::io;
use std::path::{Path, PathBuf};

use crate::cli::{CommandLineError, run, say};
use tributary_spool as spool;

#[derive(Debug, clap::Args)]
pub(super) struct SpoolArguments {
    /// Configuration file with the sinks [default: as for `run`]
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    config: Option<PathBuf>,
    /// Directory of the spools (`spool.dir`) or of one spool, instead of those of a configuration
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only the spool of this sink
    #[arg(value_name = "SINK")]
    sink: Option<String>,
}

/// The spool of a sink.
pub(super) struct SinkSpool {
    pub(super) sink: String,
    pub(super) directory: PathBuf,
}

impl SpoolArguments {
    /// Whether one spool is meant.
    pub(super) fn names_a_sink(&self) -> bool {
        self.sink.is_some()
    }

    /// The spools that exist.
    pub(super) fn places(&self) -> Result<Vec<SinkSpool>, CommandLineError> {
        let (what, mut places) = match &self.dir {
            Some(dir) => (dir.display().to_string(), in_directory(dir)?),
            None => configured(self.config.clone())?,
        };
        if let Some(sink) = &self.sink {
            let names: Vec<String> = places.iter().map(|place| place.sink.clone()).collect();
            places.retain(|place| place.sink == *sink);
            if places.is_empty() {
                let known = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
                return Err(CommandLineError::Failed(format!("{what}: no spool of a sink `{sink}`; spools: {known}")));
            }
        }
        places.retain(|place| {
            let exists = place.directory.exists();
            if !exists {
                say(format_args!("sink {}: {} does not exist yet", place.sink, place.directory.display()));
            }
            exists
        });
        Ok(places)
    }
}

fn configured(config: Option<PathBuf>) -> Result<(String, Vec<SinkSpool>), CommandLineError> {
    let (source, loaded) = run::load(config)?;
    let place = |sink: &crate::config::SinkConfig| {
        let directory = sink.kind.spool()?.directory(&sink.name);
        Some(SinkSpool { sink: sink.name.clone(), directory })
    };
    let places: Vec<SinkSpool> = loaded.config.sinks.iter().filter_map(place).collect();
    if places.is_empty() {
        return Err(CommandLineError::Failed(format!("{source}: no sink has a spool")));
    }
    Ok((source, places))
}

fn in_directory(dir: &Path) -> Result<Vec<SinkSpool>, CommandLineError> {
    let place = |directory: PathBuf| {
        let name =
            directory.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        SinkSpool { sink: name.unwrap_or_default(), directory }
    };
    if spool::is_spool(dir) {
        return Ok(vec![place(dir.to_owned())]);
    }
    let mut places = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| in_place(dir, &error))? {
        let path = entry.map_err(|error| in_place(dir, &error))?.path();
        if spool::is_spool(&path) {
            places.push(place(path));
        }
    }
    if places.is_empty() {
        return Err(CommandLineError::Failed(format!("{}: there is no spool in this directory", dir.display())));
    }
    places.sort_by(|one, other| one.sink.cmp(&other.sink));
    Ok(places)
}

/// An error of a spool.
pub(super) fn in_place(directory: &Path, error: &io::Error) -> CommandLineError {
    CommandLineError::Failed(format!("{}: {error}", directory.display()))
}
