//! The `tributary` command: a thin door to the library.

fn main() {}
