//! How long a holder may act: a lease that its holder renews, as the holder sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{Env, Time};

/// The time for which the holder of something may act, such as a server of a volume. It consists of terms, one for each
/// thing that is held, and holds while all of them do. Without a term it always holds. Clones are the same tenure.
#[derive(Clone)]
pub struct Tenure {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    /// The end of each term by its number; `None` when it has ended for good.
    terms: Mutex<BTreeMap<u64, Option<Time>>>,
    /// A term was extended, or has ended.
    changed: Notify,
}

/// A part of a [`Tenure`]. It is over until it is extended for the first time. One that is dropped is no part any more, unless it
/// has ended for good.
#[derive(Debug)]
pub struct Term {
    tenure: Tenure,
    number: u64,
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("terms", &*self.shared.terms.lock()).finish()
    }
}

impl Tenure {
    /// A tenure without terms.
    pub fn new(env: &Env) -> Tenure {
        let (terms, changed) = Default::default();
        Tenure { shared: Arc::new(Shared { env: env.clone(), terms, changed }) }
    }

    /// Adds a term.
    pub fn term(&self) -> Term {
        let mut terms = self.shared.terms.lock();
        let number = terms.last_key_value().map_or(0, |(number, _)| number + 1);
        terms.insert(number, Some(Time::ZERO));
        Term { tenure: self.clone(), number }
    }

    /// Whether the holder may act now.
    pub fn holds(&self) -> bool {
        let now = self.shared.env.now();
        self.shared.terms.lock().values().all(|until| until.is_some_and(|until| now < until))
    }

    /// Whether a term has ended for good.
    pub fn has_ended(&self) -> bool {
        self.shared.terms.lock().values().any(Option::is_none)
    }

    /// Waits until the holder may act.
    pub async fn held(&self) {
        self.wait_for(Tenure::holds).await;
    }

    /// Waits until a term has ended for good.
    pub async fn ended(&self) {
        self.wait_for(Tenure::has_ended).await;
    }

    async fn wait_for(&self, is: impl Fn(&Tenure) -> bool) {
        loop {
            let changed = self.shared.changed.notified();
            if is(self) {
                return;
            }
            changed.await;
        }
    }
}

impl Term {
    /// Lasts until `until` at least, unless it has ended.
    pub fn extend(&self, until: Time) {
        self.change(|end| end.map(|end| end.max(until)));
    }

    /// Is over now, until it is extended.
    pub fn expire(&self) {
        self.change(|end| end.map(|_| Time::ZERO));
    }

    /// Ends for good.
    pub fn end(&self) {
        self.change(|_| None);
    }

    fn change(&self, change: impl FnOnce(Option<Time>) -> Option<Time>) {
        let shared = &self.tenure.shared;
        if let Some(end) = shared.terms.lock().get_mut(&self.number) {
            *end = change(*end);
        }
        shared.changed.notify_waiters();
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        let shared = &self.tenure.shared;
        let mut terms = shared.terms.lock();
        if terms.get(&self.number).is_some_and(Option::is_some) {
            terms.remove(&self.number);
        }
        drop(terms);
        shared.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tenure_holds_while_all_of_its_terms_do() {
        let env = Env::real();
        let tenure = Tenure::new(&env);
        assert!(tenure.holds() && !tenure.has_ended());
        let (one, two) = (tenure.term(), tenure.term());
        one.extend(env.now() + Duration::from_secs(2));
        assert!(!tenure.holds(), "the other one was not extended");
        two.extend(env.now() + Duration::from_secs(1));
        two.extend(env.now());
        assert!(tenure.holds(), "it does not become shorter");
        env.sleep(Duration::from_secs(1)).await;
        assert!(!tenure.holds());
        let held = env.timeout(Duration::from_secs(5), tenure.held());
        let extending = async {
            env.sleep(Duration::from_secs(1)).await;
            two.extend(env.now() + Duration::from_secs(1));
            one.extend(env.now() + Duration::from_secs(1));
        };
        assert!(tokio::join!(held, extending).0.is_some());
        two.expire();
        assert!(!tenure.holds() && !tenure.has_ended());
        drop(two);
        assert!(tenure.holds());
        one.end();
        one.extend(env.now() + Duration::from_secs(9));
        assert!(!tenure.holds() && tenure.has_ended());
        tenure.ended().await;
        drop(one);
        assert!(!tenure.holds(), "for good");
    }
}
