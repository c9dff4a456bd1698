//! Fit of the curve: a polynomial of degree two by least squares, between logarithms of base 2.

use stele_vfs::Curve;

/// Synced writes a second that the probe promises, and puts a second that the store reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub writes_per_second: f64,
    pub puts_per_second: f64,
}

/// Returns the curve through points. With fewer than three distinct ones its degree is lower: one
/// point gives a constant distance, none the identity.
pub(super) fn fit(points: &[Point]) -> Curve {
    let xy: Vec<(f64, f64)> =
        points.iter().map(|p| (p.writes_per_second.log2(), p.puts_per_second.log2())).collect();
    let mut xs: Vec<f64> = xy.iter().map(|(x, _)| *x).collect();
    xs.sort_by(f64::total_cmp);
    let (low, high) = (xs.first().copied().unwrap_or(0.0), xs.last().copied().unwrap_or(64.0));
    xs.dedup_by(|a, b| (*a - *b).abs() < 1e-6);
    // The slope is 1 where it cannot be fitted.
    let distance = xy.iter().map(|(x, y)| y - x).sum::<f64>() / xy.len().max(1) as f64;
    let coefficients = match xs.len() {
        0..=2 => [distance, 1.0, 0.0],
        _ => polynomial(&xy).unwrap_or([distance, 1.0, 0.0]),
    };
    let fixed = |number: f64| (number * 65_536.0).round() as i64;
    Curve { coefficients: coefficients.map(fixed), range: [fixed(low), fixed(high)] }
}

/// Returns the coefficients that minimize the sum of squared distances; `None` if they are not
/// determined. The points are moved to their mean first, so that the equations are well conditioned.
fn polynomial(xy: &[(f64, f64)]) -> Option<[f64; 3]> {
    let mean = xy.iter().map(|(x, _)| x).sum::<f64>() / xy.len() as f64;
    let mut equations = [[0.0; 4]; 3];
    for (x, y) in xy {
        let powers = [1.0, x - mean, (x - mean).powi(2)];
        for (row, left) in equations.iter_mut().zip(powers) {
            for (cell, right) in row.iter_mut().zip([powers[0], powers[1], powers[2], *y]) {
                *cell += left * right;
            }
        }
    }
    let [constant, linear, quadratic] = solve(equations)?;
    // From powers of x - mean to powers of x.
    Some([
        constant - linear * mean + quadratic * mean * mean,
        linear - 2.0 * quadratic * mean,
        quadratic,
    ])
}

/// Solves three linear equations by elimination with the largest pivot.
fn solve(mut rows: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for column in 0..3 {
        let pivot =
            (column..3).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        let head = rows[column];
        if head[column].abs() < 1e-9 {
            return None;
        }
        for (at, row) in rows.iter_mut().enumerate() {
            if at != column {
                let factor = row[column] / head[column];
                row.iter_mut().zip(head).for_each(|(cell, other)| *cell -= factor * other);
            }
        }
    }
    Some([rows[0][3] / rows[0][0], rows[1][3] / rows[1][1], rows[2][3] / rows[2][2]])
}

pub(super) fn expected(curve: &Curve, writes_per_second: f64) -> f64 {
    let x = (writes_per_second.log2() * 65_536.0).round() as i64;
    (curve.log2_puts(x) as f64 / 65_536.0).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: impl Fn(f64) -> f64) -> Vec<Point> {
        let point = |x: f64| Point { writes_per_second: x.exp2(), puts_per_second: of(x).exp2() };
        (6..16).map(|x| point(f64::from(x))).collect()
    }

    #[test]
    fn points_on_a_polynomial_give_the_polynomial() {
        let curve = fit(&points(|x| -2.0 + 1.25 * x - 0.03125 * x * x));
        let near = |found: i64, wanted: f64| {
            assert!((found as f64 / 65_536.0 - wanted).abs() < 1e-3, "{found} {wanted}");
        };
        near(curve.coefficients[0], -2.0);
        near(curve.coefficients[1], 1.25);
        near(curve.coefficients[2], -0.03125);
        assert_eq!(curve.range, [6 << 16, 15 << 16]);
        let (x, y) = (10.0_f64, -2.0 + 12.5 - 3.125);
        assert!((expected(&curve, x.exp2()) - f64::exp2(y)).abs() < 1.0);
    }

    #[test]
    fn few_points_give_a_constant_factor() {
        let one = [Point { writes_per_second: 1000.0, puts_per_second: 500.0 }];
        let curve = fit(&one);
        assert_eq!(curve.coefficients[1..], [1 << 16, 0]);
        assert!((expected(&curve, 64.0) - 32.0).abs() < 0.1);
        let same = [one[0], one[0], one[0]];
        assert_eq!(fit(&same).coefficients, curve.coefficients);
        assert_eq!(fit(&[]).coefficients, [0, 1 << 16, 0]);
    }
}
