import org.codelibs.opensearch.runner.OpenSearchRunner;

/** OpenSearch with the runner's own options, on a node that also runs ingest pipelines: the runner's own does not. */
public class OpenSearchWithIngest {
    public static void main(String[] options) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> settings.putList("node.roles", "cluster_manager", "data", "ingest"));
        runner.build(options);
        while (!runner.isClosed()) {
            Thread.sleep(5000);
        }
    }
}
