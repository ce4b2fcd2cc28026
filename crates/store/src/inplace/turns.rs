//! Batches of reads and of writes, for a rotational disk.
//!
//! Writeback goes along the disk, reads all over it: alternating single requests costs a long seek
//! for each. So waiting reads are served as a batch, of which the disk takes the nearest first, and
//! then a batch of writes, as the kernel's I/O schedulers do it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Reads of one batch.
const READS: usize = 32;
/// Writes of one batch for each read of the batch before. More writes finish writeback sooner and
/// leave the disk to reads, but make a read wait longer until then.
const WRITES_PER_READ: usize = 8;

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// Requests of one direction.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<oneshot::Sender<Turn>>,
    running: usize,
}

#[derive(Debug)]
struct Lines {
    reads: Line,
    writes: Line,
    /// The direction of the batch, how many more may begin in it, and how many have begun.
    turn: Kind,
    left: usize,
    begun: usize,
}

/// The scheduler of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<Lines>>);

/// An admitted request, until this is dropped. The default is a request outside of the schedule.
#[derive(Debug, Default)]
pub(super) struct Turn(Option<(Turns, Kind)>);

impl Default for Lines {
    fn default() -> Lines {
        Lines {
            reads: Line::default(),
            writes: Line::default(),
            turn: Kind::Read,
            left: READS,
            begun: 0,
        }
    }
}

impl Turns {
    /// Waits until a request may begin.
    pub(super) async fn take(&self, kind: Kind) -> Turn {
        let (sender, turn) = oneshot::channel();
        self.0.lock().line(kind).waiting.push_back(sender);
        self.go_on();
        // The line keeps the sender until it sends.
        turn.await.unwrap_or(Turn(None))
    }

    /// Admits all requests that may begin.
    fn go_on(&self) {
        loop {
            let Some((kind, sender)) = self.0.lock().next() else { return };
            // A dropped receiver drops the turn at once, which takes the lock.
            let _ = sender.send(Turn(Some((self.clone(), kind))));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((turns, kind)) = self.0.take() {
            turns.0.lock().line(kind).running -= 1;
            turns.go_on();
        }
    }
}

impl Lines {
    fn line(&mut self, kind: Kind) -> &mut Line {
        match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
        }
    }

    /// Takes the next request that may begin out of its line.
    fn next(&mut self) -> Option<(Kind, oneshot::Sender<Turn>)> {
        for line in [&mut self.reads, &mut self.writes] {
            // Dropped requests would release their turns recursively.
            while line.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                line.waiting.pop_front();
            }
        }
        let kind = self.whose()?;
        let line = self.line(kind);
        line.running += 1;
        Some((kind, line.waiting.pop_front()?))
    }

    /// The direction of the next request, if one may begin.
    fn whose(&mut self) -> Option<Kind> {
        let (reads, writes) = (&self.reads, &self.writes);
        if reads.waiting.is_empty() && reads.running == 0 {
            // Reads that come now go first.
            (self.turn, self.left, self.begun) = (Kind::Read, READS, 0);
            return (!writes.waiting.is_empty()).then_some(Kind::Write);
        }
        let (mine, other) = match self.turn {
            Kind::Read => (reads, writes),
            Kind::Write => (writes, reads),
        };
        if mine.waiting.is_empty() || (self.left == 0 && !other.waiting.is_empty()) {
            if other.waiting.is_empty() || mine.running > 0 {
                return None;
            }
            (self.turn, self.left) = match self.turn {
                Kind::Read => (Kind::Write, self.begun.min(READS) * WRITES_PER_READ),
                Kind::Write => (Kind::Read, READS),
            };
            self.begun = 0;
        } else if other.running > 0 {
            return None;
        }
        (self.left, self.begun) = (self.left.saturating_sub(1), self.begun + 1);
        Some(self.turn)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;

    type Asked = BoxFuture<'static, Turn>;

    fn ask(turns: &Turns, kind: Kind) -> Asked {
        let turns = turns.clone();
        let mut asked = async move { turns.take(kind).await }.boxed();
        // Polled once, it stands in line.
        match (&mut asked).now_or_never() {
            Some(turn) => futures::future::ready(turn).boxed(),
            None => asked,
        }
    }

    /// Takes the admitted requests out.
    fn granted(asked: &mut Vec<Asked>) -> Vec<Turn> {
        let mut turns = Vec::new();
        asked.retain_mut(|asked| match asked.now_or_never() {
            Some(turn) => {
                turns.push(turn);
                false
            }
            None => true,
        });
        turns
    }

    fn many(turns: &Turns, kind: Kind, count: usize) -> Vec<Asked> {
        (0..count).map(|_| ask(turns, kind)).collect()
    }

    #[test]
    fn where_nobody_reads_all_writes_begin() {
        let turns = Turns::default();
        assert_eq!(granted(&mut many(&turns, Kind::Write, 1000)).len(), 1000);
    }

    #[test]
    fn a_reader_waits_for_what_is_being_written_and_for_no_more() {
        let turns = Turns::default();
        let running = granted(&mut many(&turns, Kind::Write, 32));
        let mut read = many(&turns, Kind::Read, 1);
        let mut writes = many(&turns, Kind::Write, 1000);
        assert_eq!((granted(&mut writes).len(), granted(&mut read).len()), (0, 0));
        drop(running);
        let reading = granted(&mut read);
        assert_eq!((granted(&mut writes).len(), reading.len()), (0, 1));
        drop(reading);
        assert_eq!(granted(&mut writes).len(), 1000);
    }

    #[test]
    fn many_readers_and_writers_take_turns() {
        let turns = Turns::default();
        let first = granted(&mut many(&turns, Kind::Write, 1));
        let mut reads = many(&turns, Kind::Read, 100);
        let mut writes = many(&turns, Kind::Write, 1000);
        assert_eq!((granted(&mut reads).len(), granted(&mut writes).len()), (0, 0));
        drop(first);
        let in_turn = granted(&mut reads);
        assert_eq!((in_turn.len(), granted(&mut writes).len()), (READS, 0));
        drop(in_turn);
        let in_turn = granted(&mut writes);
        assert_eq!((in_turn.len(), granted(&mut reads).len()), (READS * WRITES_PER_READ, 0));
        // The batch ends when its last request has.
        let mut in_turn = in_turn.into_iter();
        let last = in_turn.next();
        drop(in_turn);
        assert_eq!((granted(&mut writes).len(), granted(&mut reads).len()), (0, 0));
        drop(last);
        assert_eq!((granted(&mut writes).len(), granted(&mut reads).len()), (0, READS));
    }

    #[test]
    fn who_goes_away_gives_the_turn_back() {
        let turns = Turns::default();
        let mut reads = many(&turns, Kind::Read, 100);
        let running = granted(&mut reads);
        assert_eq!(running.len(), 100);
        let mut writes = many(&turns, Kind::Write, 10);
        assert_eq!(granted(&mut writes).len(), 0);
        // Of ten that wait five are dropped before they are admitted, and one after.
        writes.truncate(5);
        drop(running);
        drop(writes.pop());
        let running = granted(&mut writes);
        let mut reads = many(&turns, Kind::Read, 30);
        assert_eq!((running.len(), granted(&mut reads).len()), (4, 0));
        drop(running);
        assert_eq!(granted(&mut reads).len(), 30);
    }

    #[test]
    fn a_crowd_that_goes_away_is_passed_over() {
        let turns = Turns::default();
        let mut writes = many(&turns, Kind::Write, 1);
        let running = granted(&mut writes);
        drop(many(&turns, Kind::Read, 100_000));
        drop(running);
        let mut writes = many(&turns, Kind::Write, 1);
        assert_eq!(granted(&mut writes).len(), 1);
    }
}
