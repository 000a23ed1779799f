//! Markdown tables for docs/performance.md, and the format of their numbers.

use super::Cost;

/// Prints the head of a table; the first column has no name.
pub fn head(columns: &[&str]) {
    println!("| | {} |", columns.join(" | "));
    println!("|{}", "---|".repeat(columns.len() + 1));
}

/// Prints a row.
pub fn row(name: &str, cells: &[String]) {
    println!("| {name} | {} |", cells.join(" | "));
}

/// Prints what the same load costs with each sink, beside the first of them.
pub fn print_beside_the_first(repetitions: u64, sinks: &[&str], runs: &[Vec<Cost>]) {
    println!("{repetitions} interleaved repetitions; medians (lowest–highest); CPU in seconds per million events\n");
    head(&["events/s", "CPU", &format!("× {}", sinks[0]), "peak MiB", "sent = written + lost"]);
    for (name, costs) in sinks.iter().zip(runs) {
        let ratios: Vec<f64> =
            costs.iter().zip(&runs[0]).map(|(cost, first)| cost.cpu_seconds / first.cpu_seconds).collect();
        let peak = fixed(median(costs, |cost| cost.memory.peak));
        let (cpu, ratio) = (spread(costs, Cost::cpu_per_million), spread(&ratios, |ratio| *ratio));
        row(name, &[rate(median(costs, Cost::per_second)), cpu, ratio, peak, costs[0].balance.clone()]);
    }
}

/// The numbers and the words among the arguments. Arguments that begin with a dash are cargo's and are ignored.
pub fn arguments() -> (Vec<u64>, Vec<String>) {
    let all: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let numbers = all.iter().filter_map(|argument| argument.parse().ok()).collect();
    let words = all.iter().filter(|argument| argument.parse::<u64>().is_err()).cloned().collect();
    (numbers, words)
}

/// The median; of an even number of values, the larger middle one.
pub fn median<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The median with the lowest and the highest value.
pub fn spread<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> String {
    let low = runs.iter().map(&figure).fold(f64::INFINITY, f64::min);
    let high = runs.iter().map(&figure).fold(0.0, f64::max);
    let middle = median(runs, &figure);
    if runs.len() == 1 { fixed(middle) } else { format!("{} ({}–{})", fixed(middle), fixed(low), fixed(high)) }
}

/// Two or three significant digits.
pub fn fixed(figure: f64) -> String {
    match figure {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        0.1.. => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}

/// A number with commas between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate per second, in millions or thousands.
pub fn rate(per_second: f64) -> String {
    if per_second >= 1e6 {
        format!("{:.2} M", per_second / 1e6)
    } else if per_second >= 1e4 {
        format!("{:.0} k", per_second / 1e3)
    } else {
        format!("{per_second:.0}")
    }
}
