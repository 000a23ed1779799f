//! The columns of metrics to the data of an event.

use std::io;

use super::super::cells::{Cell, invalid};
use super::{Beyond, FileColumns};
use tributary_event::{Label, MetricData, MetricType, Number, UnixNanos};
use tributary_stored::{Rebuilder, StoredBuckets, StoredData, StoredDistribution, metric_type};

impl FileColumns {
    pub(super) fn metric(&mut self, beyond: &Beyond, out: &mut Rebuilder) -> io::Result<StoredData> {
        let wrong = |part: &str| invalid(format!("`{part}` is not as metrics have it"));
        let (of, unit) = (self.text("type")?.unwrap_or_default(), self.text("unit")?.unwrap_or_default());
        let (int, uint, double) = (self.int("value_int"), self.uint("value_uint"), self.double("value_double"));
        let (temporality, monotonic) = (self.text("temporality")?, self.cell("monotonic"));
        let start = self.time("start_time").or(beyond.get("start_time")).map(UnixNanos);
        let monotonic = if let Some(Cell::Bool(value)) = monotonic { Some(value) } else { None };
        let metric_type = metric_type(&of, temporality.as_deref(), monotonic).ok_or_else(|| wrong("type"))?;
        let unit = out.builder().push_text(&unit).into();
        let distribution = self.distribution(metric_type, unit, start);
        if !matches!(metric_type, MetricType::Gauge | MetricType::Sum { .. }) {
            return Ok(StoredData::Distribution(Box::new(distribution)));
        }
        let value = match (int, uint, double) {
            (Some(number), ..) => Number::I64(number),
            (_, Some(number), _) => Number::U64(number),
            (.., Some(number)) => Number::F64(number),
            _ => return Err(wrong("value_int")),
        };
        Ok(StoredData::Metric(MetricData { metric_type, unit, value, start }))
    }

    /// Reads its columns in every row: each has its next value. Files of earlier versions have none of them.
    fn distribution(&mut self, of: MetricType, unit: Label, start: Option<UnixNanos>) -> StoredDistribution {
        let small = |number: Option<i64>| number.and_then(|number| i32::try_from(number).ok()).unwrap_or(0);
        StoredDistribution {
            start,
            count: self.uint("count").unwrap_or(0),
            sum: self.double("sum"),
            min: self.double("min"),
            max: self.double("max"),
            bounds: self.doubles("bounds"),
            counts: self.uints("counts"),
            scale: small(self.int("scale")),
            zero_count: self.uint("zero_count").unwrap_or(0),
            zero_threshold: self.double("zero_threshold").unwrap_or(0.0),
            positive: StoredBuckets {
                offset: small(self.int("positive_offset")),
                counts: self.uints("positive_counts"),
            },
            negative: StoredBuckets {
                offset: small(self.int("negative_offset")),
                counts: self.uints("negative_counts"),
            },
            quantiles: self
                .entries::<2>("quantiles")
                .into_iter()
                .filter_map(|[quantile, value]| Some((double(quantile)?, double(value)?)))
                .collect(),
            ..StoredDistribution::new(of, unit)
        }
    }

    fn doubles(&mut self, part: &str) -> Vec<f64> {
        self.entries::<1>(part).into_iter().filter_map(|[cell]| double(cell)).collect()
    }

    fn uints(&mut self, part: &str) -> Vec<u64> {
        let uint =
            |[cell]: [Option<Cell>; 1]| if let Some(Cell::Int(number)) = cell { Some(number as u64) } else { None };
        self.entries::<1>(part).into_iter().filter_map(uint).collect()
    }

    fn double(&mut self, part: &str) -> Option<f64> {
        double(self.cell(part))
    }
}

fn double(cell: Option<Cell>) -> Option<f64> {
    if let Some(Cell::Double(number)) = cell { Some(number) } else { None }
}
