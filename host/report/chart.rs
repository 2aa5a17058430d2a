//! The loss curves in a terminal: held-out loss as a line of braille dots, islands' training loss
//! as a cloud of points.
//!
//! A braille character is a grid of 2 × 4 dots, so a chart of 70 × 16 characters has 140 × 64 of
//! them.

use super::curves::{self, Bounds, Curves, finite, smoothed};
use super::number::short;

/// Characters left of the drawing: a label and the axis.
const MARGIN: usize = 7;

/// Bit of each dot in a braille character, by row and column (Unicode 1.1, block U+2800).
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Draws the curves into at most `width` × `height` characters, heading and legend included; less
/// than 30 × 8 is taken for that.
pub fn loss_curves_text(width: usize, height: usize, curves: &Curves) -> String {
    let columns = width.max(30) - MARGIN;
    // Heading, axis, labels and legend take four lines.
    let rows = height.max(8) - 4;
    let held_out = finite(&curves.held_out);
    let islands: Vec<Vec<(f64, f64)>> = curves.islands.iter().map(smoothed).collect();
    let bounds = curves::bounds(islands.iter().chain([&held_out]).map(Vec::as_slice));
    let mut canvas = Canvas::new(columns, rows, bounds);
    canvas.line(&held_out);
    for island in &islands {
        canvas.cloud(island);
    }

    let mut text = clipped(&curves.title, width.max(30));
    text.push('\n');
    for row in 0..rows {
        let label = if row % 3 == 0 { format!("{:.2}", canvas.loss(row)) } else { String::new() };
        text.push_str(&format!("{label:>5} │"));
        text.push_str(canvas.row(row).trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{:>5} └{}\n", "", "─".repeat(columns)));
    let end = format!("{} tokens merged", short(bounds.tokens));
    text.push_str(&format!("{:>6} 0{end:>gap$}\n", "", gap = columns.saturating_sub(1)));
    let mut legend = format!("       ⠤⠤ {}", curves.held_out.name);
    if !curves.islands.is_empty() {
        legend.push_str("   ·· islands' training loss");
    }
    text.push_str(&clipped(&legend, width.max(30)));
    text.push('\n');
    text
}

/// The first `width` characters.
fn clipped(text: &str, width: usize) -> String {
    text.lines().next().unwrap_or_default().chars().take(width).collect()
}

/// Characters being drawn on.
struct Canvas {
    columns: usize,
    rows: usize,
    bounds: Bounds,
    /// Braille dots of the line, by row and column.
    line: Vec<u8>,
    /// Whether the cloud is there.
    cloud: Vec<bool>,
}

impl Canvas {
    fn new(columns: usize, rows: usize, bounds: Bounds) -> Self {
        Self { columns, rows, bounds, line: vec![0; columns * rows], cloud: vec![false; columns * rows] }
    }

    /// The dot nearest to a point, from the upper left, kept inside the canvas.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the number of dots")]
    fn dot(&self, (x, y): (f64, f64)) -> (usize, usize) {
        let (across, down) = (self.columns * 2 - 1, self.rows * 4 - 1);
        let share = |value: f64| value.clamp(0.0, 1.0);
        let Bounds { tokens, low, high } = self.bounds;
        let column = share(x / tokens) * across as f64;
        let row = share((high - y) / (high - low)) * down as f64;
        (column.round() as usize, row.round() as usize)
    }

    /// Loss in the middle of a row.
    fn loss(&self, row: usize) -> f64 {
        let share = (row as f64 + 0.5) / self.rows as f64;
        self.bounds.high - share * (self.bounds.high - self.bounds.low)
    }

    /// Joins the points by straight lines.
    fn line(&mut self, points: &[(f64, f64)]) {
        let ends = points.windows(2).map(|pair| (pair[0], pair[1])).chain(points.last().map(|last| (*last, *last)));
        for (from, to) in ends {
            let ((from_column, from_row), (to_column, to_row)) = (self.dot(from), self.dot(to));
            let steps = from_column.abs_diff(to_column).max(from_row.abs_diff(to_row)).max(1);
            for step in 0..=steps {
                let between = |a: usize, b: usize| (a * (steps - step) + b * step + steps / 2) / steps;
                let (column, row) = (between(from_column, to_column), between(from_row, to_row));
                self.line[row / 4 * self.columns + column / 2] |= DOTS[row % 4][column % 2];
            }
        }
    }

    /// Marks the cells that the points are in.
    fn cloud(&mut self, points: &[(f64, f64)]) {
        for point in points {
            let (column, row) = self.dot(*point);
            self.cloud[row / 4 * self.columns + column / 2] = true;
        }
    }

    fn row(&self, row: usize) -> String {
        (row * self.columns..(row + 1) * self.columns)
            .map(|cell| match (self.line[cell], self.cloud[cell]) {
                (0, false) => ' ',
                (0, true) => '·',
                (dots, _) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
            })
            .collect()
    }
}
