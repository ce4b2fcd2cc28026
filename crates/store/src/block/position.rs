//! Names of states that hold on every machine.

use uuid::Uuid;

use super::Version;

/// A state of a volume, wherever it is. It is written `VOLUME:TIMELINE:VERSION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// The volume, which its followers share.
    pub volume: Uuid,
    /// The timeline to which the version belongs.
    pub timeline: Uuid,
    /// The version.
    pub version: Version,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.volume, self.timeline, self.version)
    }
}

/// A text that is not a position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no position: expected VOLUME:TIMELINE:VERSION, as `thalweg replica position` prints it"
)]
pub struct NoPosition(String);

impl std::str::FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Position, NoPosition> {
        let mut parts = text.split(':');
        let mut id = || parts.next().and_then(|part| part.parse().ok());
        let (volume, timeline) = (id(), id());
        let version = parts.next().and_then(|part| part.parse().ok()).map(Version);
        let parsed = match (volume, timeline, version, parts.next()) {
            (Some(volume), Some(timeline), Some(version), None) => {
                Some(Position { volume, timeline, version })
            }
            _ => None,
        };
        // The form that is written, and no other.
        parsed
            .filter(|parsed| parsed.to_string() == text)
            .ok_or_else(|| NoPosition(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn a_position_is_read_in_the_form_in_which_it_is_written() {
        let position = Position { volume: id(1), timeline: id(2), version: Version(3) };
        let text = position.to_string();
        assert_eq!(text.parse(), Ok(position));
        for wrong in [
            "",
            "1:2:3",
            &format!("{text}:4"),
            &text.to_uppercase().replace('0', "A"),
            &format!("+{text}"),
        ] {
            assert!(wrong.parse::<Position>().is_err(), "{wrong}");
        }
    }
}
