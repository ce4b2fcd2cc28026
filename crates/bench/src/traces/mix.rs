//! Several servers on one volume, each in an address space of its own (Gecko, 3.2.2).

use super::{Access, Generator, KINDS};

/// Servers whose address spaces are concatenated and whose requests are interleaved, each server
/// at the rate at which it writes.
#[derive(Debug)]
pub struct Mix {
    servers: Vec<Server>,
    span: u64,
}

#[derive(Debug)]
struct Server {
    trace: Generator,
    base: u64,
    /// Blocks written so far, over the GB that the server writes in a week.
    progress: f64,
    weight: f64,
}

impl Mix {
    /// A mix of the servers at these positions in [`KINDS`]; a position that occurs twice runs twice.
    pub fn new(kinds: &[usize], scale: f64, seed: u64) -> Mix {
        let mut mix = Mix { servers: Vec::new(), span: 0 };
        for (nth, kind) in kinds.iter().map(|kind| KINDS[*kind]).enumerate() {
            let trace = Generator::new(kind, scale, seed.wrapping_mul(1_000_003) + nth as u64);
            let base = mix.span;
            mix.span += trace.span();
            mix.servers.push(Server { trace, base, progress: 0.0, weight: kind.writes_gb });
        }
        mix
    }

    /// Blocks in the whole address space.
    pub fn span(&self) -> u64 {
        self.span
    }
}

impl Iterator for Mix {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        let behind = |a: &&mut Server, b: &&mut Server| a.progress.total_cmp(&b.progress);
        let server = self.servers.iter_mut().min_by(behind)?;
        let mut access = server.trace.access();
        if access.write {
            server.progress += f64::from(access.blocks) / server.weight;
        }
        access.block += server.base;
        Some(access)
    }
}

/// The 21 mixes, as positions in [`KINDS`]: 0 to 7 have eight servers, all but one; 8 to 20 have
/// four of A to E, first the five that differ, then eight in which one server runs twice. Each
/// writes at least 512 GB.
pub fn mixes() -> Vec<Vec<usize>> {
    let eight = (0..8).map(|left_out| (0..9).filter(|kind| *kind != left_out).collect());
    let four = (0..5).map(|left_out| (0..5).filter(|kind| *kind != left_out).collect());
    let twice = [
        [0, 0, 1, 2],
        [0, 1, 1, 2],
        [1, 2, 2, 3],
        [2, 3, 3, 4],
        [0, 3, 4, 4],
        [0, 0, 3, 4],
        [1, 1, 2, 4],
        [0, 2, 2, 4],
    ];
    eight.chain(four).chain(twice.into_iter().map(Vec::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_as_the_paper_composes_them() {
        let mixes = mixes();
        assert_eq!(mixes.len(), 21);
        for (nth, mix) in mixes.iter().enumerate() {
            assert_eq!(mix.len(), if nth < 8 { 8 } else { 4 });
            assert!(nth < 8 || mix.iter().all(|kind| *kind < 5));
            assert!(mix.iter().map(|kind| KINDS[*kind].writes_gb).sum::<f64>() >= 512.0);
            assert!(!mixes[..nth].contains(mix), "mix {nth} occurs twice");
        }
    }

    #[test]
    fn servers_write_in_proportion_and_in_their_own_space() {
        let mut mix = Mix::new(&[0, 3], 1.0 / 1024.0, 1);
        let border = mix.servers[1].base;
        let mut written = [0.0; 2];
        for access in mix.by_ref().take(200_000).filter(|access| access.write) {
            written[usize::from(access.block >= border)] += f64::from(access.blocks);
        }
        let expected = KINDS[0].writes_gb / KINDS[3].writes_gb;
        assert!((written[0] / written[1] / expected - 1.0).abs() < 0.01);
    }
}
