//! Metrics to the columns of a row group.

use super::super::schema::EventLeaf;
use super::{RowGroup, Whole, whole};
use tributary_event::{Distribution, DistributionForm, MetricType, MetricView};

impl RowGroup {
    /// Adds the parts of a metric.
    pub(super) fn metric(&mut self, metric: MetricView<'_>) {
        let row = self.rows;
        self.text(EventLeaf::KIND, metric.metric_type.as_str());
        self.text_or_null(EventLeaf::KIND + 1, metric.unit());
        match (metric.distribution(), whole(metric.value)) {
            (Some(distribution), _) => self.distribution(&distribution),
            (None, Whole::Int(value)) => self.leaves[EventLeaf::KIND + 2].int(row, value),
            (None, Whole::Uint(value)) => self.uint(EventLeaf::KIND + 3, Some(value)),
            (None, Whole::Double(value)) => self.leaves[EventLeaf::KIND + 4].double(row, value),
        }
        if let Some(temporality) = metric.metric_type.temporality() {
            self.text(EventLeaf::KIND + 5, temporality.as_str());
        }
        if let MetricType::Sum { monotonic, .. } = metric.metric_type {
            self.leaves[EventLeaf::KIND + 6].bool(row, monotonic);
        }
        self.time(2, EventLeaf::KIND + 7, "start_time", metric.start);
    }

    /// What another form has is null or empty.
    fn distribution(&mut self, distribution: &Distribution<'_>) {
        const FIRST: usize = EventLeaf::KIND + 8;
        let Distribution { count, sum, min, max, form } = *distribution;
        self.uint(FIRST, Some(count));
        [sum, min, max].into_iter().enumerate().for_each(|(at, number)| self.double(FIRST + 1 + at, number));
        match form {
            DistributionForm::Histogram { bounds, counts, .. } => {
                bounds.iter().for_each(|bound| self.double(FIRST + 4, Some(*bound)));
                counts.iter().for_each(|count| self.uint(FIRST + 5, Some(*count)));
            }
            DistributionForm::Exponential { scale, zero_count, zero_threshold, positive, negative, .. } => {
                self.leaves[FIRST + 6].int(self.rows, scale.into());
                self.uint(FIRST + 7, Some(zero_count));
                self.double(FIRST + 8, Some(zero_threshold).filter(|threshold| *threshold != 0.0));
                for (leaf, buckets) in [(FIRST + 9, positive), (FIRST + 11, negative)] {
                    if !buckets.counts.is_empty() {
                        self.leaves[leaf].int(self.rows, buckets.offset.into());
                    }
                    buckets.counts.iter().for_each(|count| self.uint(leaf + 1, Some(*count)));
                }
            }
            DistributionForm::Summary(quantiles) => {
                for (quantile, value) in quantiles {
                    self.double(FIRST + 13, Some(*quantile));
                    self.double(FIRST + 14, Some(*value));
                }
            }
        }
    }

    fn double(&mut self, leaf: usize, number: Option<f64>) {
        if let Some(number) = number {
            self.leaves[leaf].double(self.rows, number);
        }
    }
}
