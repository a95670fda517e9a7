//! The checkpoints of a sequence.

/// A checkpoint of a sequence.
#[derive(Debug)]
pub(crate) struct Point<C> {
    pub(crate) position: usize,
    pub(crate) bytes: u64,
    pub(crate) checkpoint: C,
}

/// The checkpoints of one sequence, ascending.
#[derive(Debug)]
pub struct Points<C>(Vec<Point<C>>);

impl<C> Default for Points<C> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<C> Points<C> {
    /// The one at `position`.
    pub(crate) fn at(&self, position: usize) -> Option<&Point<C>> {
        self.0.iter().find(|point| point.position == position)
    }

    /// Where they are, ascending.
    pub(crate) fn positions(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.0.iter().map(|point| point.position)
    }

    /// All, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Point<C>> {
        self.0.iter()
    }

    /// Forgets those past `position`, where the sequence changes.
    pub(crate) fn cut(&mut self, position: usize) {
        self.0.retain(|point| point.position <= position);
    }

    /// Adds one, which comes after all others, and keeps `most`.
    pub(crate) fn add(&mut self, point: Point<C>, most: usize) {
        self.0.retain(|other| other.position < point.position);
        self.0.push(point);
        while self.0.len() > most {
            self.drop_least();
        }
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|point| point.bytes).sum()
    }

    /// Tokens that the least useful one saves: those since the one before it. The last one, where
    /// the conversation goes on, counts for more than any other.
    pub(crate) fn least(&self) -> Option<usize> {
        self.least_index().map(|(saved, _)| saved)
    }

    /// Forgets the least useful one.
    pub(crate) fn drop_least(&mut self) {
        if let Some((_, index)) = self.least_index() {
            self.0.remove(index);
        }
    }

    fn least_index(&self) -> Option<(usize, usize)> {
        let last = self.0.len().checked_sub(1)?;
        let saved = |i: usize| match i {
            _ if i == last => usize::MAX,
            0 => self.0[0].position,
            _ => self.0[i].position - self.0[i - 1].position,
        };
        (0..self.0.len()).map(|i| (saved(i), i)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(positions: &[usize]) -> Points<()> {
        let mut points = Points::default();
        for &position in positions {
            points.add(Point { position, bytes: 10, checkpoint: () }, 4);
        }
        points
    }

    fn positions(points: &Points<()>) -> Vec<usize> {
        points.positions().collect()
    }

    #[test]
    fn the_least_useful_point_goes_first_and_the_last_stays() {
        assert_eq!(positions(&points(&[100, 110, 300, 500, 505])), [100, 300, 500, 505]);
        let mut points = points(&[50, 200, 300]);
        assert_eq!((points.bytes(), points.least()), (30, Some(50)));
        for left in [&[200, 300][..], &[300], &[]] {
            points.drop_least();
            assert_eq!(positions(&points), left);
        }
        assert_eq!(points.least(), None);
    }

    #[test]
    fn points_past_a_change_are_forgotten() {
        let mut points = points(&[10, 20, 30]);
        points.cut(20);
        assert_eq!(positions(&points), [10, 20]);
    }
}
