//! `tributary decode events` and `tributary decode parquet`: events that a sink has stored.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::input::{Input, report_skipped};
use super::super::{CommandLineError, profile};
use super::output::{DecodeOutput, StdoutEncoder};
use super::{Arguments, Content};
use tributary_event::Batch;
use tributary_stored::event_file::EventFile;

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let Arguments { options, protocol_version, channel, explain, .. } = arguments;
    for (is_set, option) in [
        (!options.is_empty(), "--option"),
        (protocol_version.is_some(), "--protocol-version"),
        (channel.is_some(), "--channel"),
        (*explain, "--explain"),
    ] {
        if is_set {
            return Err(CommandLineError::Misused(format!("{option} is for received bytes; these files have events")));
        }
    }
    let filter = arguments.filter.filter()?;
    let read = |files: Vec<Input>, output: &mut DecodeOutput<'_>| -> Result<(), CommandLineError> {
        for file in files {
            let mut take = |batch| -> Result<bool, CommandLineError> {
                output.write(&filter.apply(batch));
                output.flush()?;
                Ok(!output.is_closed())
            };
            match arguments.content {
                Content::Parquet => parquet(file, &mut take)?,
                _ => events(file, &mut take)?,
            }
            if output.is_closed() {
                break;
            }
        }
        Ok(())
    };
    if arguments.profile.is_wanted(None)? {
        let decode = |files, take: &mut dyn FnMut(&Batch)| read(files, &mut DecodeOutput::Taken(take));
        return arguments.profile.run(&arguments.files, &profile::Decode { decode: &decode, takes_event_files: false });
    }
    let stdin = [PathBuf::from("-")];
    let files = if arguments.files.is_empty() { &stdin[..] } else { &arguments.files };
    let files = files.iter().map(|file| Input::new(file)).collect();
    read(files, &mut DecodeOutput::Written(Box::new(StdoutEncoder::new(arguments.format.into()))))
}

/// Reads a file of JSON lines until `take` returns `false`.
fn events(
    mut file: Input,
    take: &mut dyn FnMut(Batch) -> Result<bool, CommandLineError>,
) -> Result<(), CommandLineError> {
    let name = file.path.display().to_string();
    let failed = |error: io::Error| CommandLineError::Failed(format!("{name}: {error}"));
    let opened = EventFile::open(file.open().map_err(failed)?).map_err(failed)?;
    let is_event_file = opened.is_ok();
    let lines = opened.unwrap_or_else(EventFile::of_lines);
    let mut result = Ok(true);
    let read = lines.read(|_, _| true, &mut |batch, _, _| {
        result = take(batch);
        matches!(result, Ok(true))
    });
    result?;
    let lines = read.map_err(failed)?;
    if !is_event_file && lines.skipped > 0 && lines.skipped == lines.read {
        let why =
            "none of its lines is an event: it has neither JSON lines nor JSON lines compressed with gzip, lz4 or zstd";
        return Err(CommandLineError::Failed(format!("{name}: {why}")));
    }
    report_skipped(&name, lines);
    Ok(())
}

/// Reads a Parquet file until `take` returns `false`.
fn parquet(
    mut file: Input,
    take: &mut dyn FnMut(Batch) -> Result<bool, CommandLineError>,
) -> Result<(), CommandLineError> {
    let name = file.path.display().to_string();
    let failed = |error: io::Error| CommandLineError::Failed(format!("{name}: {error}"));
    // A fault of the output is none of the file.
    let mut result = Ok(true);
    let mut take = |batch| {
        result = take(batch);
        Ok(matches!(result, Ok(true)))
    };
    let read = if file.path == Path::new("-") {
        let mut bytes = Vec::new();
        file.open().and_then(|mut input| input.read_to_end(&mut bytes)).map_err(failed)?;
        crate::sink::parquet::read(Bytes::from(bytes), &mut take)
    } else {
        crate::sink::parquet::read(File::open(&file.path).map_err(failed)?, &mut take)
    };
    result?;
    read.map_err(failed)
}
