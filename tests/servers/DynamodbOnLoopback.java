import com.amazonaws.services.dynamodbv2.local.main.ServerRunner;
import com.amazonaws.services.dynamodbv2.local.server.DynamoDBProxyServer;
import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** DynamoDB Local with its own options, but on loopback only: by itself it listens on every interface. */
public class DynamodbOnLoopback {
    public static void main(String[] options) throws Exception {
        DynamoDBProxyServer local = ServerRunner.createServerFromCommandLineArgs(options);
        var field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        for (Connector connector : ((Server) field.get(local)).getConnectors()) {
            ((ServerConnector) connector).setHost("127.0.0.1");
        }
        local.start();
        local.join();
    }
}
