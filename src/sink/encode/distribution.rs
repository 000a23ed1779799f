//! Distributions as members of a JSON object.

use super::number::{push_f64, push_i64, push_u64};
use tributary_event::{Buckets, Distribution, DistributionForm};

/// Appends the members, each with a comma before it.
pub(super) fn push_members(out: &mut Vec<u8>, distribution: &Distribution<'_>) {
    let Distribution { count, sum, min, max, form } = distribution;
    push_count(out, ",\"count\":", *count);
    for (key, value) in [(",\"sum\":", sum), (",\"min\":", min), (",\"max\":", max)] {
        if let Some(value) = value {
            push_double(out, key, *value);
        }
    }
    match *form {
        DistributionForm::Histogram { bounds, counts, .. } => {
            if !(bounds.is_empty() && counts.is_empty()) {
                push_list(out, ",\"bounds\":", bounds, |out, bound| push_f64(out, *bound));
                push_list(out, ",\"counts\":", counts, |out, count| push_u64(out, *count));
            }
        }
        DistributionForm::Exponential { scale, zero_count, zero_threshold, positive, negative, .. } => {
            push_key(out, ",\"scale\":");
            push_i64(out, scale.into());
            push_count(out, ",\"zero_count\":", zero_count);
            if zero_threshold != 0.0 {
                push_double(out, ",\"zero_threshold\":", zero_threshold);
            }
            push_buckets(out, ",\"positive\":", positive);
            push_buckets(out, ",\"negative\":", negative);
        }
        DistributionForm::Summary(quantiles) => push_list(out, ",\"quantiles\":", quantiles, push_quantile),
    }
}

fn push_quantile(out: &mut Vec<u8>, (quantile, value): &(f64, f64)) {
    out.push(b'[');
    push_f64(out, *quantile);
    out.push(b',');
    push_f64(out, *value);
    out.push(b']');
}

fn push_buckets(out: &mut Vec<u8>, key: &str, buckets: Buckets<'_>) {
    if !buckets.counts.is_empty() {
        push_key(out, key);
        push_key(out, "{\"offset\":");
        push_i64(out, buckets.offset.into());
        push_list(out, ",\"counts\":", buckets.counts, |out, count| push_u64(out, *count));
        out.push(b'}');
    }
}

fn push_list<T>(out: &mut Vec<u8>, key: &str, items: &[T], push: fn(&mut Vec<u8>, &T)) {
    push_key(out, key);
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push(out, item);
    }
    out.push(b']');
}

fn push_count(out: &mut Vec<u8>, key: &str, count: u64) {
    push_key(out, key);
    push_u64(out, count);
}

fn push_double(out: &mut Vec<u8>, key: &str, value: f64) {
    push_key(out, key);
    push_f64(out, value);
}

fn push_key(out: &mut Vec<u8>, key: &str) {
    out.extend_from_slice(key.as_bytes());
}
