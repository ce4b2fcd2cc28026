//! Shows the durations of writes and flushes, and the causes of writers' waits.

use std::fmt::Write;

use serde::Deserialize;

/// One stage of requests; durations in microseconds.
#[derive(Debug, Deserialize)]
pub(super) struct Stage {
    stage: String,
    count: u64,
    p50_us: u64,
    p99_us: u64,
    p999_us: u64,
    max_us: u64,
}

/// One slow flush: when it ended, its duration, and its stages.
#[derive(Debug, Deserialize)]
pub(super) struct SlowFlush {
    ended_s: f64,
    took_us: u64,
    stages: Vec<(String, u64)>,
}

/// A cause for which writers wait.
#[derive(Debug, Deserialize)]
pub(super) struct Wait {
    cause: String,
    writers: u64,
    seconds: f64,
}

/// A line about writers that wait now, if there are any.
pub(super) fn waits(out: &mut String, waits: &[Wait]) -> std::fmt::Result {
    for Wait { cause, writers, .. } in waits.iter().filter(|wait| wait.writers > 0) {
        writeln!(out, "  WAITING     {writers} writers wait for: {cause}")?;
    }
    Ok(())
}

/// The table of stages, the slowest flushes, and the total time that writers waited.
pub(super) fn table<'a>(
    out: &mut String,
    stages: impl IntoIterator<Item = &'a Stage>,
    slow: &[SlowFlush],
    waits: &[Wait],
) -> std::fmt::Result {
    let head = ["count", "p50", "p99", "p99.9", "max"].map(|head| format!("{head:>10}"));
    writeln!(out, "  {:22}{}", "stage", head.join(""))?;
    for it in stages.into_iter().filter(|stage| stage.count > 0) {
        let spans =
            [it.p50_us, it.p99_us, it.p999_us, it.max_us].map(|us| format!("{:>10}", Span(us)));
        writeln!(out, "  {:22}{:>10}{}", it.stage, it.count, spans.join(""))?;
    }
    for Wait { cause, seconds, .. } in waits.iter().filter(|wait| wait.seconds > 0.0) {
        writeln!(out, "  writers waited for the {cause}: {seconds:.3} s in total")?;
    }
    if !slow.is_empty() {
        writeln!(out, "  slowest flushes, with when they ended since the volume was opened:")?;
    }
    for SlowFlush { ended_s, took_us, stages } in slow {
        let stages: Vec<String> =
            stages.iter().map(|(stage, us)| format!("{stage} {}", Span(*us))).collect();
        writeln!(
            out,
            "    {:>9} at {ended_s:.3} s: {}",
            Span(*took_us).to_string(),
            stages.join(", ")
        )?;
    }
    Ok(())
}

/// Microseconds in a readable unit.
struct Span(u64);

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = self.0;
        let text = match micros {
            0..10_000 => format!("{micros} us"),
            10_000..10_000_000 => format!("{} ms", micros / 1_000),
            _ => format!("{} s", micros / 1_000_000),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_that_never_came_are_left_out() {
        let stage = |stage: &str, count| Stage {
            stage: stage.to_owned(),
            count,
            p50_us: 12,
            p99_us: 9_999,
            p999_us: 25_000,
            max_us: 12_000_000,
        };
        let slow = SlowFlush {
            ended_s: 1.5,
            took_us: 25_000,
            stages: vec![("round_data".to_owned(), 400)],
        };
        let mut out = String::new();
        table(&mut out, &[stage("flush", 3), stage("settle", 0)], &[slow], &[]).unwrap();
        let flush = out.lines().nth(1).unwrap();
        assert!(flush.ends_with("3     12 us   9999 us     25 ms      12 s"), "{out}");
        assert!(!out.contains("settle") && out.contains("25 ms at 1.500 s: round_data 400 us"));
    }
}
