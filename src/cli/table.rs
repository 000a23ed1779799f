//! A human-readable table.

/// Appends a table: columns before `first_number` are aligned to the left, the others to the right.
pub(super) fn push(lines: &mut Vec<u8>, headings: &[&str], first_number: usize, rows: &[Vec<String>]) {
    let heading: Vec<String> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let all = || std::iter::once(&heading).chain(rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    for row in all() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < first_number { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        lines.extend_from_slice(line.trim_end().as_bytes());
        lines.push(b'\n');
    }
}
