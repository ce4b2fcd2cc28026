//! Reads and writes in turns, for a drive that moves an arm.
//!
//! Writes home go along the disk, reads all over it: an arm that serves one of each in alternation goes
//! a long way for both. So the reads that wait are served together, of which the drive begins with the
//! nearest, and then a stretch of writes, as schedulers of kernels do it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Reads of one turn.
const READS: usize = 32;
/// Writes of one turn for each read of the last one. The more, the sooner all of them are home and reads
/// have the arm for themselves; and the longer a read waits until then.
const WRITES_PER_READ: usize = 8;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// Requests of one kind.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<oneshot::Sender<Turn>>,
    running: usize,
}

#[derive(Debug)]
struct Lines {
    reads: Line,
    writes: Line,
    /// Whose turn it is, how many more may begin in it, and how many have.
    turn: Kind,
    left: usize,
    begun: usize,
}

/// Who may begin on a drive.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<Lines>>);

/// A request that may run, until this is dropped. By default out of turn.
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
    /// Waits until such a request may begin.
    pub(super) async fn take(&self, kind: Kind) -> Turn {
        let (sender, turn) = oneshot::channel();
        self.0.lock().line(kind).waiting.push_back(sender);
        self.go_on();
        // The sender is kept until it is used.
        turn.await.unwrap_or(Turn(None))
    }

    /// Lets go whoever may.
    fn go_on(&self) {
        loop {
            let Some((kind, sender)) = self.0.lock().next() else { return };
            // Who has gone away gives the turn back; not under the lock.
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

    /// Takes out the next request that may begin.
    fn next(&mut self) -> Option<(Kind, oneshot::Sender<Turn>)> {
        for line in [&mut self.reads, &mut self.writes] {
            // Else they would give their turns back one within the other.
            while line.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                line.waiting.pop_front();
            }
        }
        let kind = self.whose()?;
        let line = self.line(kind);
        line.running += 1;
        Some((kind, line.waiting.pop_front()?))
    }

    /// Of which kind the next request is, if one may begin.
    fn whose(&mut self) -> Option<Kind> {
        let (reads, writes) = (&self.reads, &self.writes);
        if reads.waiting.is_empty() && reads.running == 0 {
            // When some come, they are next.
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
        // It stands in line from now on.
        match (&mut asked).now_or_never() {
            Some(turn) => futures::future::ready(turn).boxed(),
            None => asked,
        }
    }

    /// Those who may run, taken out of those who asked.
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
        // The turn ends when all of it has.
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
        // Of ten that wait half go away before their turn comes, and one when it has come.
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
