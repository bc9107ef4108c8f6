"""clusterlab: predict, run, explain the gap.

Three rooms. The modules beside this file are the mathematics (numpy only);
``clusterlab.run`` holds the experiments (torch); ``clusterlab.widgets`` the
interactive parts. The mathematics imports neither of the others.
"""
