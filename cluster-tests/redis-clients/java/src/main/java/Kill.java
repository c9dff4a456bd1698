import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The phase kill: numbered values are written one at a time while the harness kills a leader, and read at the end. */
final class Kill {
  private static final long WRITE_INTERVAL_MS = 10;

  /** Time after the last write in which every name must become readable. */
  private static final long READ_TIMEOUT_MS = 60_000;

  private final List<Boolean> acknowledged = new ArrayList<>();
  private final Map<String, Integer> errors = new TreeMap<>();
  private long pauseMaxMs;

  static void run(Main.Subject subject, String[] nodes, double seconds) {
    Test test = new Test(subject.name() + "-killed", nodes[0]);
    Kill kill = new Kill();
    try {
      Main.Writer writer = subject.writer().open(test.host, test.port);
      kill.write(writer, test, seconds);
      long lost = kill.countLost(writer, test);
      long count = kill.acknowledged.stream().filter(it -> it).count();
      Main.print(subject, "leader killed", lost == 0 && count > 0 ? "passed" : "failed", kill.text(count, lost));
    } catch (Exception failure) {
      Main.print(subject, "leader killed", "failed", Main.textOf(failure) + "; errors: " + kill.errors);
    }
  }

  private void write(Main.Writer writer, Test test, double seconds) throws InterruptedException {
    long end = System.nanoTime() + (long) (seconds * 1e9);
    long last = System.nanoTime();
    for (int number = 0; System.nanoTime() < end; number++) {
      long started = System.nanoTime();
      try {
        writer.set(test.name(number), Integer.toString(number));
        acknowledged.add(true);
        pauseMaxMs = Math.max(pauseMaxMs, (System.nanoTime() - last) / 1_000_000);
        last = System.nanoTime();
      } catch (Exception failure) {
        acknowledged.add(false);
        errors.merge(kindOf(failure), 1, Integer::sum);
      }
      Thread.sleep(Math.max(0, WRITE_INTERVAL_MS - (System.nanoTime() - started) / 1_000_000));
    }
    pauseMaxMs = Math.max(pauseMaxMs, (System.nanoTime() - last) / 1_000_000);
  }

  /** Returns how many acknowledged values are absent or others. */
  private long countLost(Main.Writer writer, Test test) throws Exception {
    long end = System.nanoTime() + READ_TIMEOUT_MS * 1_000_000;
    long lost = 0;
    for (int number = 0; number < acknowledged.size(); number++) {
      String value = read(writer, test.name(number), end);
      boolean present = Integer.toString(number).equals(value);
      if (!present && (value != null || acknowledged.get(number))) {
        lost++;
      }
    }
    return lost;
  }

  private static String read(Main.Writer writer, String name, long end) throws Exception {
    while (true) {
      try {
        return writer.get(name);
      } catch (Exception failure) {
        if (System.nanoTime() > end) {
          throw failure;
        }
        Thread.sleep(100);
      }
    }
  }

  /** Returns the text without what differs between two errors of one kind. */
  private static String kindOf(Exception failure) {
    String text = Main.textOf(failure).replaceAll("[0-9]+", "N");
    return text.substring(0, Math.min(text.length(), 160));
  }

  private String text(long count, long lost) {
    List<String> kinds = new ArrayList<>();
    errors.forEach((kind, number) -> kinds.add(number + " × " + kind));
    return "errors: " + (kinds.isEmpty() ? "none" : String.join(" | ", kinds)) + "; longest pause " + pauseMaxMs
        + " ms; acknowledged " + count + " of " + acknowledged.size() + "; lost " + lost;
  }
}
