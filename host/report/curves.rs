//! The loss curves of a run, and what every picture of them needs: smoothing and bounds.

/// One line of a picture.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// (tokens merged, loss in nats per byte), by ascending tokens. Points that are not finite are
    /// not drawn.
    pub points: Vec<(f64, f64)>,
}

/// Everything in one picture.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curves {
    /// The heading: which run, what was trained.
    pub title: String,
    /// Held-out loss of the committed model: the line that counts.
    pub held_out: Series,
    /// Training loss of each island; drawn smoothed.
    pub islands: Vec<Series>,
}

/// No line has more points than this: a picture is a thousand dots wide.
const POINTS_MAX: usize = 400;

/// A line is averaged over this part of its points.
const SMOOTHING: usize = 40;

/// The finite points of a series.
pub(super) fn finite(series: &Series) -> Vec<(f64, f64)> {
    series.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
}

/// The mean of each point and its neighbours, thinned out. The window is centred, so that the line
/// does not lag behind the loss. Towards the beginning it shrinks on both sides, as the loss falls
/// steeply there; at the end it is cut on one side, so that the line ends on a mean and not on one
/// noisy batch.
pub(super) fn smoothed(series: &Series) -> Vec<(f64, f64)> {
    let points = finite(series);
    let reach = points.len() / (2 * SMOOTHING);
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let mut thin: Vec<usize> = (0..points.len()).step_by(step).collect();
    if let Some(last) = points.len().checked_sub(1)
        && thin.last() != Some(&last)
    {
        thin.push(last);
    }
    thin.into_iter()
        .map(|at| {
            let reach = reach.min(at);
            let near = &points[at - reach..=(at + reach).min(points.len() - 1)];
            // The window is short, so its length is exact.
            (points[at].0, near.iter().map(|point| point.1).sum::<f64>() / near.len() as f64)
        })
        .collect()
}

/// The part of the plane that a picture shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    /// Tokens at the right edge; the left one is 0.
    pub tokens: f64,
    /// Loss at the lower edge.
    pub low: f64,
    /// Loss at the upper edge.
    pub high: f64,
}

/// Bounds that hold all of `lines`, with a little air and round values at the edges.
pub(super) fn bounds<'a>(lines: impl Iterator<Item = &'a [(f64, f64)]>) -> Bounds {
    let (mut tokens, mut low, mut high) = (0.0_f64, f64::INFINITY, f64::NEG_INFINITY);
    for (x, y) in lines.flatten() {
        tokens = tokens.max(*x);
        low = low.min(*y);
        high = high.max(*y);
    }
    if low > high {
        (low, high) = (0.0, 1.0);
    }
    let step = round_step((high - low).max(0.01) / 8.0);
    Bounds {
        tokens: if tokens > 0.0 { tokens } else { 1.0 },
        low: ((low / step).floor() * step).max(0.0).min(low),
        high: ((high / step + 0.1).ceil()) * step,
    }
}

/// The least of 1, 2, 2.5, 5 times a power of ten that is at least `least`.
pub(super) fn round_step(least: f64) -> f64 {
    let power = 10.0_f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * 0.999_999)
        .unwrap_or(least)
}

/// What to divide tokens by, and what to call the result.
pub(super) fn token_unit(tokens: f64) -> (f64, &'static str) {
    match tokens {
        few if few < 1e6 => (1e3, "k"),
        many if many < 1e9 => (1e6, "M"),
        _ => (1e9, "G"),
    }
}
