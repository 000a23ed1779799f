//! For how long the files of a configuration keep events: a part of `tributary check`.

use std::time::Duration;

use crate::config::{Config, SinkKind};
use tributary_options::units::format_duration;
use tributary_sink_file::{Compression, Options};

/// A Parquet file takes about this part of the same events as JSON lines: docs/performance.md.
const PARQUET_SHARE: u64 = 20;
const DAY: Duration = Duration::from_secs(86_400);

/// Reads `--rate`: events per second, as `10000/s` or `10000`.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse::<u64>();
    number.ok().filter(|rate| *rate > 0).ok_or_else(|| "write events per second, as 10000/s".to_owned())
}

/// A line for each sink that writes files. An event has `event_bytes` as a JSON line.
pub(super) fn lines(config: &Config, rate: u64, event_bytes: u64) -> Vec<String> {
    let files = config.sinks.iter().filter_map(|sink| match &sink.kind {
        SinkKind::File(options) => Some((&sink.name, options.clone(), event_bytes, false)),
        SinkKind::Parquet(options) => {
            let is_uploaded = options.upload.as_ref().is_some_and(|upload| upload.delete_after);
            Some((&sink.name, options.kept(), event_bytes.div_ceil(PARQUET_SHARE), is_uploaded))
        }
        _ => None,
    });
    files
        .map(|(name, options, event_bytes, is_uploaded)| {
            let kept = kept(&options, rate.saturating_mul(event_bytes));
            let until = if is_uploaded { "files stay until they are uploaded; while the store is away, " } else { "" };
            format!("sink {name}, at {rate} events/s of {event_bytes} bytes for one series of files: {until}{kept}")
        })
        .collect()
}

/// What is kept of one series of files that grows by `bytes_per_second`.
fn kept(options: &Options, bytes_per_second: u64) -> String {
    let daily = rounded(bytes_per_second.saturating_mul(DAY.as_secs()));
    let most = [
        (options.keep_bytes > 0).then_some(options.keep_bytes),
        (options.keep_files > 0 && options.rotate_bytes > 0)
            .then(|| options.rotate_bytes.saturating_mul(options.keep_files as u64)),
    ];
    let by_size = most.into_iter().flatten().min().map(|bytes| Duration::from_secs(bytes / bytes_per_second.max(1)));
    let by_count = (options.keep_files > 0 && !options.rotate_interval.is_zero())
        .then(|| options.rotate_interval.saturating_mul(u32::try_from(options.keep_files).unwrap_or(u32::MAX)));
    let by_time = (!options.keep_time.is_zero()).then_some(options.keep_time);
    let compressed = match options.compression {
        Compression::None => "",
        _ => ", before compression",
    };
    match [by_size, by_count, by_time].into_iter().flatten().min() {
        Some(time) => {
            let bytes = rounded(bytes_per_second.saturating_mul(time.as_secs()));
            format!("events are kept for {}, about {bytes}{compressed}", format_duration(time))
        }
        None => format!("everything is kept, about {daily} more each day{compressed}"),
    }
}

/// A size in the largest unit that is not larger than it.
fn rounded(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_limit_decides() {
        let options = Options { rotate_bytes: 0, rotate_interval: Duration::ZERO, ..Options::default() };
        let kept = |options: &Options| kept(options, 1024);
        assert_eq!(kept(&options), "everything is kept, about 84.4 MiB more each day");
        let options = Options { keep_time: DAY, ..options };
        assert_eq!(kept(&options), "events are kept for 1d, about 84.4 MiB");
        let options = Options { keep_bytes: 1024 * 3600, compression: Compression::Gzip, ..options };
        assert_eq!(kept(&options), "events are kept for 1h, about 3.5 MiB, before compression");
        let options = Options { keep_files: 2, rotate_bytes: 1024 * 60, ..options };
        assert_eq!(kept(&options), "events are kept for 2m, about 120.0 KiB, before compression");
        let options = Options { keep_files: 2, rotate_interval: Duration::from_secs(10), ..options };
        assert_eq!(kept(&options), "events are kept for 20s, about 20.0 KiB, before compression");
    }

    #[test]
    fn a_rate_is_a_positive_number_per_second() {
        assert_eq!((rate("10000/s"), rate("7")), (Ok(10_000), Ok(7)));
        assert!(["0", "/s", "-1/s", "5/m", "x"].iter().all(|text| rate(text).is_err()));
    }
}
